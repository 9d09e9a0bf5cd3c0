"""What keeps a partial outage small: retry budgets, breakers, context windows. Decides; sends nothing."""
