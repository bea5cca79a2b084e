-- The rules of a queue as a whole, from the hash ':rules': the most jobs that run at a time, the tokens a
-- second, and the burst; '-' for none. Running jobs are those of the counter, so a slot is free once
-- the state of its job changes. The hash ':buckets' has tokens, their time, and the end of a pause.
local function rules_of(queue)
  local text = redis.call('HGET', tag .. ':rules', queue)
  if not text then return nil end
  local most, rate, burst = string.match(text, '(%S+) (%S+) (%S+)')
  return {queue = queue, most = tonumber(most), rate = tonumber(rate), burst = tonumber(burst)}
end

-- The tokens of a bucket now, and the end of its pause.
local function bucket_of(rules)
  local text = redis.call('HGET', tag .. ':buckets', rules.queue)
  if not text then return rules.burst, 0 end
  local tokens, at, paused = string.match(text, '(%S+) (%S+) (%S+)')
  local since = math.max(0, now - tonumber(at))
  return math.min(rules.burst, tonumber(tokens) + since * rules.rate), tonumber(paused)
end

local function fill_bucket(rules, tokens, paused)
  redis.call('HSET', tag .. ':buckets', rules.queue,
    string.format('%.17g %.17g %.17g', tokens, now, paused))
end

-- How many of `limit` jobs of a queue may start now.
local function room_of(rules, limit)
  if not rules then return limit end
  if rules.most then
    local running = tonumber(redis.call('HGET', tag .. ':n', 'r:' .. rules.queue) or 0)
    limit = math.min(limit, rules.most - math.max(0, running))
  end
  if rules.rate then
    local tokens, paused = bucket_of(rules)
    limit = math.min(limit, paused > now and 0 or math.floor(tokens + 1e-9))
  end
  return math.max(0, limit)
end

local function spend_tokens(rules, taken)
  if not rules or not rules.rate or taken == 0 then return end
  local tokens, paused = bucket_of(rules)
  fill_bucket(rules, tokens - taken, paused)
end
