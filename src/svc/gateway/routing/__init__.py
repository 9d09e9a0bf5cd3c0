"""Which backend serves a request: providers, load balancing, circuit breakers, retry budgets."""
