-- One decision over all limits of a shared gate, all or nothing, at Redis' own time.
--
-- KEYS: the state, the holders, then a queue and its sums for every strict limit.
-- ARGV: who asks; the limits; what is taken back; what is asked for, in order, equal costs together.
-- Returns numbers: now, born, granted, ticket, the limit that is waited for (0 none, -1 a turn, -2 a newer calendar),
-- until when; then two for every limit: the stamp its bookings have, and what is used of it.
--
-- Times are microseconds and amounts whole numbers below 2^53, so every sum is exact.

local at = 0
local function text() at = at + 1 return ARGV[at] end
local function num() at = at + 1 return tonumber(ARGV[at]) end
local function int(value) return string.format('%.0f', value) end
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local me = text()
local seq, held, lease, grace = num(), num(), num(), num()
local known, seen, expects = num(), num(), num()

local limits, fields, key = {}, { 't', 'born', 'n', 'cold', 'kept', 'margin' }, 3
for i = 1, num() do
  local limit = { kind = text(), name = text(), amount = num(), a = num(), b = num(), c = num() }
  limit.dimension, limit.book, limit.told, limit.told_at, limit.pause = num(), num(), num(), num(), num()
  if limit.kind == 's' then
    limit.queue, limit.sums = KEYS[key], KEYS[key + 1]
    key = key + 2
  end
  limits[i] = limit
  fields[#fields + 1] = limit.name .. ':used'
  fields[#fields + 1] = limit.name .. ':at'
  fields[#fields + 1] = limit.name .. ':till'
end

local state = redis.call('HMGET', KEYS[1], unpack(fields))
local last, born, tickets = tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0)
local cold, kept, margin = tonumber(state[4] or 0), tonumber(state[5] or 0), tonumber(state[6] or 0)
local clock = redis.call('TIME')
-- A clock that was set back stands still until it has caught up.
local now = max(tonumber(clock[1]) * 1000000 + tonumber(clock[2]), last)

-- The way to the server is as long as the machine that is farthest says; what it said holds for an hour.
local hour = floor(now / 3600000000)
if hour ~= kept then margin = 0 end
for _, limit in ipairs(limits) do
  if limit.kind == 's' then margin = max(margin, limit.c) end
end
for _, limit in ipairs(limits) do
  if limit.kind == 's' then limit.c = margin end
end

-- Who holds what, and who waits. A record outlives its expiry by a lease, without counting.
local mine, taken, expiry_first, others, gone = nil, 0, nil, {}, {}
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local count, number, expiry, ticket, till, answer = all[i + 1]:match('^(%d+) (%d+) (%d+) (%d+) (%d+) ?(.*)$')
  local record = { id = all[i], count = tonumber(count), seq = tonumber(number), expiry = tonumber(expiry),
    ticket = tonumber(ticket), till = tonumber(till), answer = answer }
  if record.id == me then
    mine = record
  elseif record.expiry + lease <= now then
    gone[#gone + 1] = record.id
  elseif record.expiry > now then
    taken = taken + record.count
    if record.count > 0 then expiry_first = min(expiry_first or record.expiry, record.expiry) end
    if record.ticket > 0 and record.till > now then others[#others + 1] = record end
  end
end

-- Asked twice, answered once: a connection that broke does not decide anything again.
if mine and seq <= mine.seq and (known == 0 or known == born) then
  if seq == mine.seq then return mine.answer end
  return 'late'
end

-- Whoever asks knows the time from us only; it comes back with the days around it.
for _, limit in ipairs(limits) do
  if limit.kind == 'd' and (now < limit.a or now >= limit.c) then
    return table.concat({ int(now), int(born), '0', '0', '-2', int(now) }, ' ')
  end
end

-- Out of memory, or a replica, Redis says so here, before anything has changed.
redis.call('HSET', KEYS[1], 't', int(now))
if #gone > 0 then redis.call('HDEL', KEYS[2], unpack(gone)) end

-- Redis may have lost what it knew, or gone back to an older copy of it. Then nothing is free until every window that
-- could have been used has passed, and no slot until every holder has had the time to say what it holds.
local lost = known ~= 0 and known ~= born
local back = not lost and known ~= 0
  and (seen > last or (mine and seq > mine.seq + 1) or (not mine and expects == 1))
local freeze = back or (lost and cold == 0)
if born == 0 or freeze then born = now end
if freeze then cold = now + lease end

local function write_sum(limit, index, by)
  return tonumber(redis.call('HINCRBY', limit.sums, int(index), int(by)))
end

local resumed = false
for i, limit in ipairs(limits) do
  limit.used, limit.at = tonumber(state[4 + 3 * i] or 0), tonumber(state[5 + 3 * i] or 0)
  limit.add = 0
  -- The server said so to one of us, and it holds for all; below zero: it does not hold any more.
  limit.till = tonumber(state[6 + 3 * i] or 0)
  limit.till_before = limit.till
  if limit.pause > 0 then
    limit.till = max(limit.till, now + limit.pause)
  elseif limit.pause < 0 and limit.till > 0 then
    limit.till, resumed = 0, true
  end
  if limit.kind == 's' then
    -- Counted until the bucket's end has left the window: never over, a thousandth below at most.
    limit.at = floor(now / limit.b)
    local gone = now - limit.a - limit.c
    while true do
      local old = redis.call('LRANGE', limit.queue, 0, 63)
      local over = 0
      while over < #old and (tonumber(old[over + 1]) + 1) * limit.b <= gone do over = over + 1 end
      if over == 0 then break end
      for _, sum in ipairs(redis.call('HMGET', limit.sums, unpack(old, 1, over))) do
        limit.used = limit.used - tonumber(sum or 0)
      end
      redis.call('HDEL', limit.sums, unpack(old, 1, over))
      redis.call('LTRIM', limit.queue, over, -1)
      if over < 64 then break end
    end
    limit.used = max(limit.used, 0)
    if freeze and limit.used < limit.amount then limit.book = limit.book + limit.amount - limit.used end
  elseif limit.kind == 'b' then
    limit.full = limit.b * limit.a
    if not state[5 + 3 * i] and limit.c == 1 then
      limit.used = limit.full
    else
      limit.used = max(0, limit.used - limit.amount * (now - limit.at))
    end
    if freeze then limit.used = limit.full end
    limit.at = now
  elseif limit.kind == 'a' or limit.kind == 'd' then
    local from, to
    if limit.kind == 'a' then
      from = now - now % limit.a
      to = from + limit.a
    elseif now < limit.b then
      from, to = limit.a, limit.b
    else
      from, to = limit.b, limit.c
    end
    if from > limit.at then limit.used, limit.at = 0, from end
    if (lost or back) and limit.told_at == limit.at then limit.used = max(limit.used, limit.told) end
    limit.to = to
  end
  if limit.kind == 'b' then
    limit.used = limit.used + limit.book * limit.a
  elseif limit.kind ~= 'c' then
    limit.used, limit.add = limit.used + limit.book, limit.book
  end
end

local returned = num()
for _ = 1, returned do
  local limit, stamp, amount = limits[num()], num(), num()
  if limit.kind == 'b' then
    limit.used = max(0, limit.used - amount * limit.a)
  elseif limit.kind == 's' then
    if stamp == 0 then
      stamp = limit.at
      local fresh = min(amount, limit.add)
      limit.add, limit.used, amount = limit.add - fresh, limit.used - fresh, amount - fresh
    end
    local there = tonumber(redis.call('HGET', limit.sums, int(stamp)) or 0)
    local take = min(amount, there)
    if take > 0 then
      write_sum(limit, stamp, -take)
      limit.used = max(0, limit.used - take)
    end
  elseif limit.kind ~= 'c' and (stamp == 0 or stamp == limit.at) then
    limit.used = max(0, limit.used - amount)
  end
end

local slots, slots_of = math.huge, 0
for i, limit in ipairs(limits) do
  if limit.kind == 'c' and limit.amount - taken - held < slots then
    slots, slots_of = max(0, limit.amount - taken - held), i
  end
end
if slots_of > 0 and cold > now then slots = 0 end

-- When a cost fits a limit that it does not fit now.
local function ready_at(limit, cost)
  if limit.kind == 'b' then return now + ceil((limit.used + cost * limit.a - limit.full) / limit.amount) end
  if limit.kind ~= 's' then return limit.to end
  local need, from = limit.used + cost - limit.amount, 0
  while true do
    local old = redis.call('LRANGE', limit.queue, from, from + 63)
    if #old == 0 then return (limit.at + 1) * limit.b + limit.a + limit.c end
    for i, sum in ipairs(redis.call('HMGET', limit.sums, unpack(old))) do
      need = need - tonumber(sum or 0)
      if need <= 0 then return (tonumber(old[i]) + 1) * limit.b + limit.a + limit.c end
    end
    from = from + 64
  end
end

-- Those who have waited for longer, elsewhere.
local ticket_before = mine and mine.ticket or 0
local turn_at, first = 0, nil
for _, other in ipairs(others) do
  if ticket_before == 0 or other.ticket < ticket_before then turn_at = max(turn_at, min(other.till, other.expiry)) end
  if not first or other.ticket < first.ticket then first = other end
end

local granted, waits_for, ready = 0, 0, now
local runs, dimensions = num(), num()
if runs > 0 and turn_at > 0 then
  waits_for, ready = -1, turn_at
else
  for _ = 1, runs do
    local count, costs = num(), {}
    for d = 1, dimensions do costs[d] = num() end
    local fit = min(count, slots)
    for i, limit in ipairs(limits) do
      local cost = costs[limit.dimension] or 0
      if limit.till > now and (cost > 0 or limit.kind == 'c') then
        fit = 0
        if waits_for == 0 or limit.till > ready then waits_for, ready = i, limit.till end
      end
      if cost > 0 then
        if limit.kind == 'b' then
          fit = min(fit, floor((limit.full - limit.used) / (cost * limit.a)))
        else
          fit = min(fit, floor((limit.amount - limit.used) / cost))
        end
      end
    end
    fit = max(fit, 0)
    granted, slots = granted + fit, slots - fit
    for i, limit in ipairs(limits) do
      local cost = costs[limit.dimension] or 0
      if cost > 0 then
        if limit.kind == 'b' then
          limit.used = limit.used + fit * cost * limit.a
        else
          limit.used, limit.add = limit.used + fit * cost, limit.add + fit * cost
        end
        if fit < count then
          local full = limit.kind == 'b' and limit.used + cost * limit.a > limit.full
            or limit.kind ~= 'b' and limit.used + cost > limit.amount
          if full then
            local when = ready_at(limit, cost)
            if waits_for == 0 or when > ready then waits_for, ready = i, when end
          end
        end
      end
    end
    if fit < count then
      if slots <= 0 then
        waits_for, ready = slots_of, max(ready, cold, expiry_first or now + lease)
      end
      break
    end
  end
end

-- A ticket is a place among the machines: whoever got something and wants more goes to the end.
local ticket = ticket_before
if waits_for == 0 then
  ticket = 0
elseif granted > 0 or ticket == 0 then
  tickets = tickets + 1
  ticket = tickets
end
local freed = mine and held < mine.count or returned > 0 or resumed
local left = ticket_before > 0 and first and ticket_before < first.ticket
if first and (freed or left) and (ticket == 0 or first.ticket < ticket) then
  -- It is expected at once; if it does not come, it holds up nobody for longer than the grace.
  first.till = min(first.till, now + grace)
  local record = { int(first.count), int(first.seq), int(first.expiry), int(first.ticket), int(first.till), first.answer }
  redis.call('HSET', KEYS[2], first.id, table.concat(record, ' '))
  redis.call('PUBLISH', KEYS[1] .. ':turn:' .. first.id, '')
end

local keep = 8 * 24 * 3600 * 1000
-- Redis removes a key with its last element, and the expiry with it: a key that is made again needs a new one.
local made = false
local saved = { 't', int(now), 'born', int(born), 'n', int(tickets), 'cold', int(cold) }
local answer = { int(now), int(born), int(granted), int(ticket), int(waits_for), int(ready) }
for _, limit in ipairs(limits) do
  local used = limit.used
  if limit.kind == 's' then
    keep = max(keep, ceil(limit.a / 500))
    if limit.add > 0 then
      write_sum(limit, limit.at, limit.add)
      if redis.call('LINDEX', limit.queue, -1) ~= int(limit.at) then
        made = redis.call('RPUSH', limit.queue, int(limit.at)) == 1 or made
      end
    end
  elseif limit.kind == 'b' then
    keep = max(keep, ceil(limit.a / 500))
    used = ceil(used / limit.a)
  elseif limit.kind == 'c' then
    limit.used, limit.at, used = 0, 0, taken + held + granted
  end
  if limit.till ~= limit.till_before then
    saved[#saved + 1] = limit.name .. ':till'
    saved[#saved + 1] = int(limit.till)
  end
  if limit.kind ~= 'c' then
    saved[#saved + 1] = limit.name .. ':used'
    saved[#saved + 1] = int(limit.used)
    saved[#saved + 1] = limit.name .. ':at'
    saved[#saved + 1] = int(limit.at)
  end
  answer[#answer + 1] = int(limit.kind == 'b' and 0 or limit.at)
  answer[#answer + 1] = int(used)
end
saved[#saved + 1] = 'kept'
saved[#saved + 1] = int(hour)
saved[#saved + 1] = 'margin'
saved[#saved + 1] = int(margin)
redis.call('HSET', KEYS[1], unpack(saved))
answer = table.concat(answer, ' ')
local record = { int(held + granted), int(seq), int(now + lease), int(ticket), int(ready + grace), answer }
made = redis.call('HSET', KEYS[2], me, table.concat(record, ' ')) == 1 or made
-- Keys that are not used any more expire.
if made or hour ~= kept then
  for _, name in ipairs(KEYS) do redis.call('PEXPIRE', name, int(keep)) end
end
return answer
