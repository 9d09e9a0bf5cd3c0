-- The counters of keys, for all processes that share a Redis. `redis.py` runs this script, atomically.
--
--   KEYS     one hash per operation, each with these fields. A field that is missing is 0:
--     newest                  the last second that was counted, by the clock of Redis
--     created                 the microsecond in which the hash was created. It lacks what was counted before
--     requests, tokens        sums over the window
--     r<n>, t<n>              requests and tokens of the second that is n modulo BUCKETS
--     running, held           requests in flight, and the nano-USD reserved for them
--     c:<process>, m:<process>
--                             the part of each process in `running` and `held`
--     a:<process>             the last second in which the process was active. It is repeated while `c` is not 0
--     q:<process>             the number of the newest spending that was added. A repeated one is not added again
--     x:<process>             the second in which the process left. Its later reservations do nothing
--     spent, start, kind      nano-USD spent in the period, the start of the period, and its length: day (1), month (2) or
--                             total (3)
--     seed                    the id of the sum: another one if it was loaded from the database, or a period began
--     buried                  the second of the last check for expired processes
--   In a cluster, a script can use the keys of one slot only. It then has one operation.
--
--   ARGV[1] is an array in MessagePack. It has an array for each operation, with these items and results:
--     reserve PROCESS REQUESTS TOKENS CONCURRENCY BUDGET KIND START  REQUESTED-TOKENS REQUESTED-NANO-USD SPENT SEED
--       SPENT is the sum in the database. Empty: return {2} if the sum is not loaded. -1: count from 0.
--       -> {1, requests left, tokens left, ms to reset, second, seed, requests in flight with this one, created}
--       -> {0, limit, ms to retry or -1 (only the next period helps), requests left, tokens left,
--           ms to reset requests, ms to reset tokens, requests, tokens, running, nano-USD spent, nano-USD reserved}
--       -> {2}  the caller must repeat the command with SPENT
--       -> {}   the process has left
--     commit PROCESS SECOND CREATED RESERVED-TOKENS RESERVED-NANO-USD USED-TOKENS USED-NANO-USD NUMBER
--     correct_tokens SECOND CREATED TOKENS           adds tokens, or subtracts them, where a reservation of that second
--                                                    has counted
--       With another value of CREATED, the hash that had the reservation was lost. Only the money counts then.
--     get_usage KIND START
--       -> {requests, tokens, running, nano-USD spent or -1 if the sum is not loaded, nano-USD reserved}
--     record_spend PROCESS NUMBER NANO-USD SEED      does nothing if another sum was loaded since
--     raise_spent KIND START NANO-USD SEED           replaces a smaller sum: Redis continued with older data
--       -> {1, seed}
--     keep_alive PROCESS                             its requests are still in flight
--     leave PROCESS                                  releases its requests in flight. Commands that it sent before, over
--                                                    a lost connection, can follow
--
--   The reply is an array of results in MessagePack, which the gateway decodes faster than arrays of Redis. The first
--   failed operation ends the script and has counted nothing. If it is the first operation, the reply is its error.
--   Otherwise the reply has the results of the operations before it.

local BUCKETS, TTL_SECONDS = 61, 3600
local PROCESS_TTL_SECONDS, PROCESS_CHECK_SECONDS = 15, 600
local MAX_ARGUMENTS = 1000 -- of a command: Lua's stack has place for about 8,000 values
local format, unpack = string.format, unpack
local time = redis.call('TIME')
local redis_second, redis_micros = tonumber(time[1]), tonumber(time[2])
local redis_millis = math.floor(redis_micros / 1000)

-- State of the current operation:
local key
local second, millis
local at = {} -- the fields that were read, by name
local changed = {} -- the names of those to write

local function read(names)
  local values = redis.call('HMGET', key, unpack(names))
  for i = 1, #names do
    at[names[i]] = (values[i] or 0) + 0 -- an addition converts faster than `tonumber`
  end
end

-- Reads the sums, and other fields that the operation needs.
local function read_sums(...)
  read({'newest', 'created', 'requests', 'tokens', 'running', 'held', 'spent', 'start', 'kind', 'seed', 'buried', ...})
end

local function set(name, value)
  at[name] = value
  changed[name] = true
end

-- Writes the changed fields. HSET is first: nothing is written if Redis refuses it.
local function save()
  local fields, count, zero_fields = {}, 0, nil
  for name in next, changed do
    local value = at[name]
    if value == 0 then
      zero_fields = zero_fields or {}
      zero_fields[#zero_fields + 1] = name
    else
      fields[count + 1], fields[count + 2] = name, format('%d', value)
      count = count + 2
    end
  end
  for first = 1, count, MAX_ARGUMENTS do
    redis.call('HSET', key, unpack(fields, first, math.min(first + MAX_ARGUMENTS - 1, count)))
  end
  for first = 1, zero_fields and #zero_fields or 0, MAX_ARGUMENTS do
    redis.call('HDEL', key, unpack(zero_fields, first, math.min(first + MAX_ARGUMENTS - 1, #zero_fields)))
  end
  if changed.newest then
    redis.call('EXPIRE', key, TTL_SECONDS)
  end
  changed = {}
end

-- Reads the fields of `names` that were not read or changed yet.
local function read_missing(names)
  local missing = {}
  for _, name in ipairs(names) do
    if at[name] == nil then
      missing[#missing + 1] = name
    end
  end
  if #missing > 0 then
    read(missing)
  end
end

local function add(name, amount)
  if at[name] == nil then
    read({name})
  end
  set(name, at[name] + amount)
end

local function bucket_names(prefix, ages)
  local names = {}
  for i, age in ipairs(ages) do
    names[i] = prefix .. (second - age) % BUCKETS
  end
  return names
end

-- Continues with an empty window, since the clock was set back by a long time. What is in flight stays.
local function leave_future()
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if string.find(all[i], '^[ax]:') and tonumber(all[i + 1]) > second then
      set(all[i], second)
    end
  end
  set('buried', 0)
  at.newest = second - BUCKETS
end

-- Clears the buckets that have left the window.
local function advance()
  if second < at.newest then
    if at.newest - second > TTL_SECONDS then
      leave_future()
    else
      second, millis = at.newest, 0 -- the clock went backward
    end
  end
  if second == at.newest then
    return
  end
  local ages = {}
  for age = 0, math.min(second - at.newest, BUCKETS) - 1 do
    ages[#ages + 1] = age
  end
  for prefix, sum in pairs({r = 'requests', t = 'tokens'}) do
    local names = bucket_names(prefix, ages)
    read(names)
    for _, name in ipairs(names) do
      if at[name] ~= 0 then
        set(sum, at[sum] - at[name])
        set(name, 0)
      end
    end
    if #ages == BUCKETS and at[sum] ~= 0 then
      set(sum, 0)
    end
  end
  if at.newest == 0 then
    set('created', redis_second * 1e6 + redis_micros)
  end
  set('newest', second)
end

-- Adds tokens to those of a second, which stay at least 0, if it is in the window.
local function add_tokens(counted_second, tokens)
  local bucket = 't' .. counted_second % BUCKETS
  if tokens ~= 0 and counted_second <= second and second - counted_second < BUCKETS then
    if at[bucket] == nil then
      read({bucket})
    end
    tokens = math.max(tokens, -at[bucket])
    add('tokens', tokens)
    add(bucket, tokens)
  end
end

-- Returns the milliseconds until `needed` units have left the window, and until all have.
local function ms_until_freed(prefix, needed)
  local ages = {}
  for age = BUCKETS - 1, 0, -1 do
    ages[#ages + 1] = age -- the oldest first
  end
  local freed, first, last = 0, nil, 0
  local names = bucket_names(prefix, ages)
  read_missing(names)
  for i, name in ipairs(names) do
    if at[name] > 0 then
      freed = freed + at[name]
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
  set('buried', second)
  save()
  local all = redis.call('HGETALL', key)
  local active = {}
  for i = 1, #all, 2 do
    local process = string.match(all[i], '^a:(.+)$')
    if process then
      active[process] = tonumber(all[i + 1])
    end
  end
  for i = 1, #all, 2 do
    local part, process = string.match(all[i], '^([acmqx]):(.+)$')
    local age = part and second - (part == 'x' and tonumber(all[i + 1]) or active[process] or 0)
    if part == 'x' and age >= PROCESS_TTL_SECONDS then
      set(all[i], 0)
    elseif (part == 'c' or part == 'm') and age >= PROCESS_TTL_SECONDS then
      local name = part == 'c' and 'running' or 'held'
      set(name, math.max(0, at[name] - tonumber(all[i + 1])))
      set(all[i], 0)
    elseif part and age >= TTL_SECONDS then
      set(all[i], 0)
    end
  end
end

-- Releases at most what the process has reserved: nothing if it had expired.
local function release(name, field, amount)
  local released = math.min(at[field], amount)
  set(name, math.max(0, at[name] - released))
  set(field, math.max(0, at[field] - released))
end

-- Adds to the money spent. A negative number repeats a report whose reply was lost: it is not added twice.
local function spend(process, number, nano_usd)
  if nano_usd == 0 then
    return
  end
  if number ~= 0 then
    local newest = at['q:' .. process]
    if number < 0 and -number <= newest then
      return
    end
    -- A first report can be older than the newest: it waited until the script was cached.
    set('q:' .. process, math.max(newest, math.abs(number)))
    set('a:' .. process, second)
  end
  set('spent', at.spent + nano_usd)
end

local function reserve(
  process, requests, tokens, concurrency, budget, kind, start, requested_tokens, nano_usd, spent, seed
)
  local bucket = second % BUCKETS
  read_sums('r' .. bucket, 't' .. bucket, 'c:' .. process, 'm:' .. process, 'x:' .. process)
  if at['x:' .. process] ~= 0 then
    return {}
  end
  advance()
  if second - at.buried >= PROCESS_CHECK_SECONDS then
    remove_expired_processes()
  end
  if budget > 0 then
    if at.kind ~= kind then -- the sum is not loaded
      if spent == '' then
        return {2}
      elseif tonumber(spent) >= 0 then
        set('spent', tonumber(spent))
        set('start', start)
        set('kind', kind)
        set('seed', seed)
      end
    elseif start > at.start then
      set('start', start)
      set('spent', math.max(0, tonumber(spent) or 0))
      set('seed', seed ~= 0 and seed or redis_second * 1e6 + redis_micros) -- a new sum
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
  bucket = second % BUCKETS
  if limit then
    if limit ~= 'rpm' then -- a request counts even if another limit rejects it
      left[1] = math.max(0, left[1] - 1)
      add('requests', 1)
      add('r' .. bucket, 1)
    end
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
  add('requests', 1)
  add('r' .. bucket, 1)
  add('running', 1)
  add('c:' .. process, 1)
  set('a:' .. process, second)
  if requested_tokens > 0 then
    add('tokens', requested_tokens)
    add('t' .. bucket, requested_tokens)
  end
  if nano_usd > 0 then
    add('held', nano_usd)
    add('m:' .. process, nano_usd)
  end
  local requests_left, tokens_left = math.max(0, left[1] - 1), math.max(0, left[2] - requested_tokens)
  return {1, requests_left, tokens_left, BUCKETS * 1000 - millis, second, at.seed, at.running, at.created}
end

local function commit(process, reserved_second, created, tokens, nano_usd, used_tokens, used_nano_usd, number)
  local bucket = 't' .. reserved_second % BUCKETS
  read_sums(bucket, 'c:' .. process, 'm:' .. process, 'q:' .. process)
  if at.newest == 0 then
    return {1} -- the hash has expired since
  end
  advance()
  if created == at.created then
    add_tokens(reserved_second, used_tokens - tokens)
    release('running', 'c:' .. process, 1)
    if nano_usd > 0 then
      release('held', 'm:' .. process, nano_usd)
    end
  end
  spend(process, number, used_nano_usd)
  return {1}
end

local function correct_tokens(counted_second, created, tokens)
  read_sums()
  if at.newest ~= 0 and created == at.created then
    advance()
    add_tokens(counted_second, tokens)
  end
  return {1}
end

local function record_spend(process, number, nano_usd, seed)
  read_sums('q:' .. process)
  if at.seed == seed and at.kind ~= 0 then
    spend(process, number, nano_usd)
  end
  return {1}
end

local function raise_spent(kind, start, nano_usd, seed)
  read_sums()
  if at.kind == kind and at.start == start and nano_usd > at.spent then
    set('spent', nano_usd)
    set('seed', seed) -- reports from before are a part of the new sum
  end
  return {1, at.seed}
end

local function keep_alive(process)
  if redis.call('HEXISTS', key, 'c:' .. process) == 1 then
    set('a:' .. process, second)
    redis.call('EXPIRE', key, TTL_SECONDS)
  end
  return {1}
end

local function leave(process)
  read_sums('c:' .. process, 'm:' .. process)
  advance()
  release('running', 'c:' .. process, math.huge)
  release('held', 'm:' .. process, math.huge)
  set('x:' .. process, second)
  return {1}
end

local function get_usage(kind, start)
  read_sums()
  if at.newest == 0 then
    return {0, 0, 0, -1, 0}
  end
  advance()
  if at.running > 0 then
    remove_expired_processes()
  end
  local spent = at.kind ~= kind and -1 or start > at.start and 0 or at.spent
  return {at.requests, at.tokens, at.running, spent, at.held}
end

local OPERATIONS = {
  reserve = reserve,
  commit = commit,
  correct_tokens = correct_tokens,
  get_usage = get_usage,
  record_spend = record_spend,
  raise_spent = raise_spent,
  keep_alive = keep_alive,
  leave = leave,
}

local function run(operation_key, arguments)
  key, second, millis, at, changed = operation_key, redis_second, redis_millis, {}, {}
  local result = OPERATIONS[arguments[1]](unpack(arguments, 2))
  save()
  return result
end

local operations = cmsgpack.unpack(ARGV[1])
local results = {run(KEYS[1], operations[1])} -- without `pcall`, which takes the code from an error in Redis 7
for number = 2, #operations do
  local succeeded, result = pcall(run, KEYS[number], operations[number])
  if not succeeded then
    break
  end
  results[number] = result
end
return cmsgpack.pack(results)
