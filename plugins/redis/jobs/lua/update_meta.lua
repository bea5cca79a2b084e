-- Updates keys in the meta of running jobs: ARGV id and lease as one string, then a JSON object.
-- Returns for each: 0 if its lease is lost, otherwise how many objects its meta has now; for fewer
-- jobs than requested if the records are large.
--@include _record
--@include _free
local ids, lines = {}, {}
for at = 1, #ARGV, 2 do ids[#ids + 1] = string.sub(ARGV[at], 1, 16) end
local texts = fetch(ids)
for at, text in ipairs(texts) do
  local id, job = ids[at], text and read(text, ids[at])
  if not job or job.lease ~= string.sub(ARGV[2 * at - 1], 17) or job.state ~= RUNNING then
    lines[at] = 0
  else
    local meta, errors, result = tails(job)
    meta = #meta == 0 and ARGV[2 * at] or meta .. '\n' .. ARGV[2 * at]
    redis.call('SET', key(id), rewritten(job, meta, errors, result))
    lines[at] = breaks(meta, 1, #meta) + 1
  end
end
return lines
