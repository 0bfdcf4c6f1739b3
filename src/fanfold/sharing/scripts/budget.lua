-- Sets what a sharer has spent and reserved, and reserves more where the budget of all allows it.
-- KEYS: budget.  ARGV: me, spent, reserved with what is wanted, wanted, limit, seconds a reservation is kept.
-- Returns 1 or 0, what is left, what is reserved, and how many sharers have reserved lately.
local now = tonumber(redis.call('TIME')[1])
local spent, reserved, want = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local total, others, sharers = spent, 0, 1
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local paid, open, kept = all[i + 1]:match('^(%S+) (%S+) (%S+)$')
  if all[i] ~= ARGV[1] and tonumber(paid) and tonumber(open) and tonumber(kept) then
    total = total + tonumber(paid)
    if tonumber(kept) > now then
      others = others + tonumber(open)
      sharers = sharers + 1
    end
  end
end
local granted = total + others + reserved <= tonumber(ARGV[5]) * (1 + 1e-12)
if not granted then reserved = reserved - want end
local kept = now + tonumber(ARGV[6])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.12g %.12g %d', spent, reserved, kept))
redis.call('EXPIRE', KEYS[1], 2592000)
local left = tonumber(ARGV[5]) - total - others - reserved
return {granted and 1 or 0, string.format('%.12g', left), string.format('%.12g', others + reserved), sharers}
