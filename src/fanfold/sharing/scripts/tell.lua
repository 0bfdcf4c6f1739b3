-- Tells all sharers of a limit to hold back, or what a server said of its rates.
-- KEYS: bucket, channel.  ARGV: message, seconds, burst, and field, value pairs to keep.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local hold = tonumber(ARGV[2])
if hold > 0 then
  for unit = 0, 3 do
    local field = 'until ' .. unit
    local spent = tonumber(redis.call('HGET', KEYS[1], field))
    if spent then
      redis.call('HSET', KEYS[1], field, string.format('%.6f', math.max(spent, now + hold + tonumber(ARGV[3]))))
    end
  end
end
for i = 4, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', KEYS[1], 600)
return redis.call('PUBLISH', KEYS[2], ARGV[1])
