-- Reserves units of one limit: as many as a sharer may take at once, from when its turn comes.
-- KEYS: bucket, who, queue.  ARGV: me, again, alone, crowded, cap, flying, calls, and for each known rate: unit, units
-- per second, burst, wanted by all calls, wanted by the first, given back.
-- Returns seconds until the turn (negative: no room in flight), sharers, calls, and the units of each rate.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local me, again = ARGV[1], ARGV[2] == '1'
local cap, flying, calls = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 10)
redis.call('ZADD', KEYS[2], now, me)
redis.call('EXPIRE', KEYS[2], 600)
local sharers = redis.call('ZRANGE', KEYS[2], 0, -1)

-- Others wait: take turns that are short, and no more than a fair part of what may be in flight.
local own = redis.call('ZSCORE', KEYS[3], me)
local crowd = redis.call('ZCOUNT', KEYS[3], now - 0.1, '+inf') - ((own and tonumber(own) >= now - 0.1) and 1 or 0)

local part = 1
if cap > 0 then
  local all, here = redis.call('HGETALL', KEYS[1]), {}
  for _, other in ipairs(sharers) do here['flying ' .. other] = true end
  redis.call('HSET', KEYS[1], 'flying ' .. me, flying)
  local free = cap - flying
  for i = 1, #all, 2 do
    if all[i] ~= 'flying ' .. me and all[i]:sub(1, 7) == 'flying ' then
      if here[all[i]] then free = free - tonumber(all[i + 1]) else redis.call('HDEL', KEYS[1], all[i]) end
    end
  end
  if crowd > 0 then free = math.min(free, math.max(1, math.floor(cap / (crowd + 1))) - flying) end
  if free < 1 or calls < 1 then
    if calls > 0 then redis.call('ZADD', KEYS[3], now, me) else redis.call('ZREM', KEYS[3], me) end
    redis.call('EXPIRE', KEYS[1], 600)
    redis.call('EXPIRE', KEYS[3], 600)
    return {'-1', tostring(#sharers), '0'}
  end
  part = math.min(1, free / calls)
end

local most = tonumber(crowd > 0 and ARGV[4] or ARGV[3])
for i = 8, #ARGV, 6 do
  local want = tonumber(ARGV[i + 3])
  if want > 0 then part = math.min(part, most * tonumber(ARGV[i + 1]) / want) end
end
if cap > 0 then
  calls = math.max(1, math.floor(part * calls + 1e-6))
  redis.call('HSET', KEYS[1], 'flying ' .. me, flying + calls)
end

-- A clock that was set back makes everything look used up for long.
local seen = tonumber(redis.call('HGET', KEYS[1], 'seen') or '0')
again = again or seen > now + 1
if seen > now + 1 then redis.call('HDEL', KEYS[1], 'until 0', 'until 1', 'until 2', 'until 3') end
redis.call('HSET', KEYS[1], 'seen', string.format('%.6f', now))

local start, reply = now, {'', tostring(#sharers), tostring(calls)}
for i = 8, #ARGV, 6 do
  local field, rate, burst = 'until ' .. ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local units = math.max(tonumber(ARGV[i + 4]), part * tonumber(ARGV[i + 3]))
  -- Where a bucket that was in use is gone, nothing is left of its burst.
  local spent = tonumber(redis.call('HGET', KEYS[1], field) or (again and now + burst or now))
  spent = spent - tonumber(ARGV[i + 5]) / rate
  start = math.max(start, spent - math.max(0, burst - units / rate))
  redis.call('HSET', KEYS[1], field, string.format('%.6f', math.max(spent, now) + units / rate))
  reply[#reply + 1] = string.format('%.9g', units)
end
if calls > 0 and start > now then
  redis.call('ZADD', KEYS[3], start, me)
else
  redis.call('ZREM', KEYS[3], me)
end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - 10)
redis.call('EXPIRE', KEYS[1], math.ceil(start - now) + 600)
redis.call('EXPIRE', KEYS[3], math.ceil(start - now) + 600)
reply[1] = string.format('%.6f', start - now)
return reply
