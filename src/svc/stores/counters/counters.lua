-- The counters of one key, for all processes that share a Redis. `redis.py` runs this script, atomically.
--
--   KEYS[1]  a hash with these fields:
--     newest                  the last second that was counted, by the clock of Redis
--     requests, tokens        sums over the window
--     r<n>, t<n>              requests and tokens of the second that is n modulo BUCKETS
--     running, held           requests in flight, and the nano-USD reserved for them
--     c:<process>, m:<process>
--                             the part of each process in `running` and `held`
--     a:<process>             the last second in which the process was active. It is repeated while `c` is not 0
--     q:<process>             the number of the newest spending that was added. A repeated one is not added again
--     spent, start, kind      nano-USD spent in the period, the start of the period, and its length: day (1), month (2) or
--                             total (3)
--     seed                    the id of the sum that was loaded from the database
--     buried                  the second of the last check for expired processes
--   No other key is used: in a cluster, a script can use the keys of one slot only.
--
--   ARGV[1] is an array in MessagePack. Its items, and the results:
--     reserve PROCESS REQUESTS TOKENS CONCURRENCY BUDGET KIND START  REQUESTED-TOKENS REQUESTED-NANO-USD SPENT SEED
--       SPENT is the sum in the database. Empty: return {2} if the sum is not loaded. -1: count from 0.
--       -> {1, requests left, tokens left, ms to reset, second, seed}
--       -> {0, limit, ms to retry or -1 (only the next period helps), requests left, tokens left,
--           ms to reset requests, ms to reset tokens}
--       -> {2}  the caller must repeat the command with SPENT
--     commit PROCESS SECOND RESERVED-TOKENS RESERVED-NANO-USD USED-TOKENS USED-NANO-USD NUMBER
--     get_usage KIND START
--       -> {requests, tokens, running, nano-USD spent or -1 if the sum is not loaded, nano-USD reserved}
--     record_spend PROCESS NUMBER NANO-USD SEED      does nothing if another sum was loaded since
--     keep_alive PROCESS                             its requests are still in flight
--     leave PROCESS                                  releases its requests in flight

local BUCKETS, TTL_SECONDS = 61, 3600
local PROCESS_TTL_SECONDS, PROCESS_CHECK_SECONDS = 15, 600
local key = KEYS[1]
local time = redis.call('TIME')
local second, millis = tonumber(time[1]), math.floor(tonumber(time[2]) / 1000)

local at = {}
do
  local names = {'newest', 'requests', 'tokens', 'running', 'held', 'spent', 'start', 'kind', 'seed', 'buried'}
  for i, value in ipairs(redis.call('HMGET', key, unpack(names))) do
    at[names[i]] = tonumber(value or 0)
  end
end

local function read_buckets(prefix, ages)
  local names = {}
  for i, age in ipairs(ages) do
    names[i] = prefix .. (second - age) % BUCKETS
  end
  return names, redis.call('HMGET', key, unpack(names))
end

-- Clears the buckets that have left the window.
local function advance()
  if second <= at.newest then
    if second < at.newest then
      second, millis = at.newest, 0 -- the clock went backward
    end
    return
  end
  local ages = {}
  for age = 0, math.min(second - at.newest, BUCKETS) - 1 do
    ages[#ages + 1] = age
  end
  for prefix, name in pairs({r = 'requests', t = 'tokens'}) do
    local names, values = read_buckets(prefix, ages)
    for _, value in ipairs(values) do
      at[name] = at[name] - tonumber(value or 0)
    end
    redis.call('HDEL', key, unpack(names))
  end
  at.newest = second
end

local function save()
  redis.call('HSET', key, 'newest', at.newest, 'requests', at.requests, 'tokens', at.tokens, 'running', at.running,
    'held', at.held, 'spent', at.spent, 'start', at.start, 'kind', at.kind, 'seed', at.seed)
  redis.call('EXPIRE', key, TTL_SECONDS)
end

local ALL_AGES = {}
for age = BUCKETS - 1, 0, -1 do
  ALL_AGES[#ALL_AGES + 1] = age -- the oldest first
end

-- Returns the milliseconds until `needed` units have left the window, and until all have.
local function ms_until_freed(prefix, needed)
  local _, values = read_buckets(prefix, ALL_AGES)
  local freed, first, last = 0, nil, 0
  for i, value in ipairs(values) do
    if tonumber(value or 0) > 0 then
      freed = freed + tonumber(value)
      last = i * 1000
    end
    if not first and freed >= needed then
      first = i * 1000
    end
  end
  return math.max(1, (first or BUCKETS * 1000) - millis), math.max(0, last - millis)
end

-- Removes the requests in flight of expired processes, and what else is left of a process after TTL_SECONDS.
-- Runs before a rejection, at most once a second, and every PROCESS_CHECK_SECONDS.
local function remove_expired_processes()
  if at.buried == second then
    return
  end
  at.buried = second
  redis.call('HSET', key, 'buried', second)
  local all = redis.call('HGETALL', key)
  local active = {}
  for i = 1, #all, 2 do
    local process = string.match(all[i], '^a:(.+)$')
    if process then
      active[process] = tonumber(all[i + 1])
    end
  end
  for i = 1, #all, 2 do
    local part, process = string.match(all[i], '^([acmq]):(.+)$')
    local age = part and second - (active[process] or 0)
    if (part == 'c' or part == 'm') and age >= PROCESS_TTL_SECONDS then
      local name = part == 'c' and 'running' or 'held'
      at[name] = math.max(0, at[name] - tonumber(all[i + 1]))
      redis.call('HDEL', key, all[i])
    elseif part and age >= TTL_SECONDS then
      redis.call('HDEL', key, all[i])
    end
  end
end

local function release(name, field, amount)
  local reserved = tonumber(redis.call('HGET', key, field) or 0)
  local released = math.min(reserved, amount) -- 0 if the process had expired
  at[name] = math.max(0, at[name] - released)
  if reserved - released <= 0 then
    redis.call('HDEL', key, field)
  else
    redis.call('HSET', key, field, reserved - released)
  end
end

-- Adds to the money spent. A negative number repeats a report whose reply was lost: it is not added twice.
local function spend(process, number, nano_usd)
  if nano_usd == 0 then
    return
  end
  if number ~= 0 then
    local newest = tonumber(redis.call('HGET', key, 'q:' .. process) or 0)
    if number < 0 and -number <= newest then
      return
    end
    -- A first report can be older than the newest: it waited until the script was cached.
    redis.call('HSET', key, 'q:' .. process, math.max(newest, math.abs(number)), 'a:' .. process, second)
  end
  at.spent = at.spent + nano_usd
end

local function reserve(
  process, requests, tokens, concurrency, budget, kind, start, requested_tokens, nano_usd, spent, seed
)
  advance()
  if second - at.buried >= PROCESS_CHECK_SECONDS then
    remove_expired_processes()
  end
  if budget > 0 then
    if at.kind ~= kind then -- the sum is not loaded
      if spent == '' then
        save()
        return {2}
      elseif tonumber(spent) >= 0 then
        at.spent, at.start, at.kind, at.seed = tonumber(spent), start, kind, seed
      end
    elseif start > at.start then
      at.start, at.spent = start, 0
    end
  end
  local function over_concurrency() return concurrency > 0 and at.running >= concurrency end
  local function over_budget() return budget > 0 and at.spent + at.held + math.max(1, nano_usd) > budget end
  if over_concurrency() or over_budget() then
    remove_expired_processes()
  end
  local limit, retry
  if requests > 0 and at.requests >= requests then
    limit, retry = 'rpm', ms_until_freed('r', at.requests - requests + 1)
  elseif tokens > 0 and at.tokens + requested_tokens > tokens then
    limit, retry = 'tpm', ms_until_freed('t', at.tokens + requested_tokens - tokens)
  elseif over_concurrency() then
    limit, retry = 'concurrency', 1000
  elseif over_budget() then
    limit, retry = 'budget', at.spent + math.max(1, nano_usd) > budget and -1 or 1000
  end
  local requests_before = at.requests
  local left = {math.max(0, requests - at.requests), math.max(0, tokens - at.tokens)}
  if limit then
    if limit ~= 'rpm' then -- a request counts even if another limit rejects it
      at.requests, left[1] = at.requests + 1, math.max(0, left[1] - 1)
      redis.call('HINCRBY', key, 'r' .. second % BUCKETS, 1)
    end
    save()
    local requests_reset, tokens_reset, _ = 0, 0
    if requests > 0 then
      _, requests_reset = ms_until_freed('r', 1)
    end
    if tokens > 0 then
      _, tokens_reset = ms_until_freed('t', 1)
    end
    local used = {requests_before, at.tokens, at.running, at.spent, at.held}
    return {0, limit, retry, left[1], left[2], requests_reset, tokens_reset, unpack(used)}
  end
  at.requests, at.tokens = at.requests + 1, at.tokens + requested_tokens
  at.running, at.held = at.running + 1, at.held + nano_usd
  redis.call('HINCRBY', key, 'r' .. second % BUCKETS, 1)
  redis.call('HINCRBY', key, 'c:' .. process, 1)
  redis.call('HSET', key, 'a:' .. process, second)
  if requested_tokens > 0 then
    redis.call('HINCRBY', key, 't' .. second % BUCKETS, requested_tokens)
  end
  if nano_usd > 0 then
    redis.call('HINCRBY', key, 'm:' .. process, nano_usd)
  end
  save()
  local requests_left, tokens_left = math.max(0, left[1] - 1), math.max(0, left[2] - requested_tokens)
  return {1, requests_left, tokens_left, BUCKETS * 1000 - millis, second, at.seed}
end

local function commit(process, reserved_second, tokens, nano_usd, used_tokens, used_nano_usd, number)
  if at.newest == 0 then
    return {1} -- the hash has expired since
  end
  advance()
  if used_tokens ~= tokens and second - reserved_second < BUCKETS then
    at.tokens = at.tokens + used_tokens - tokens
    redis.call('HINCRBY', key, 't' .. reserved_second % BUCKETS, used_tokens - tokens)
  end
  release('running', 'c:' .. process, 1)
  release('held', 'm:' .. process, nano_usd)
  spend(process, number, used_nano_usd)
  save()
  return {1}
end

local function record_spend(process, number, nano_usd, seed)
  if at.seed == seed and at.kind ~= 0 then
    spend(process, number, nano_usd)
    save()
  end
  return {1}
end

local function keep_alive(process)
  if redis.call('HEXISTS', key, 'c:' .. process) == 1 then
    redis.call('HSET', key, 'a:' .. process, second)
    redis.call('EXPIRE', key, TTL_SECONDS)
  end
  return {1}
end

local function leave(process)
  release('running', 'c:' .. process, math.huge)
  release('held', 'm:' .. process, math.huge)
  if at.newest ~= 0 then
    save()
  end
  return {1}
end

local function get_usage(kind, start)
  if at.newest == 0 then
    return {0, 0, 0, -1, 0}
  end
  advance()
  if at.running > 0 then
    remove_expired_processes()
  end
  save()
  local spent = at.kind ~= kind and -1 or start > at.start and 0 or at.spent
  return {at.requests, at.tokens, at.running, spent, at.held}
end

local a = cmsgpack.unpack(ARGV[1])
if a[1] == 'reserve' then
  return reserve(a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12])
elseif a[1] == 'commit' then
  return commit(a[2], a[3], a[4], a[5], a[6], a[7], a[8])
elseif a[1] == 'get_usage' then
  return get_usage(a[2], a[3])
elseif a[1] == 'record_spend' then
  return record_spend(a[2], a[3], a[4], a[5])
elseif a[1] == 'keep_alive' then
  return keep_alive(a[2])
end
return leave(a[2])
