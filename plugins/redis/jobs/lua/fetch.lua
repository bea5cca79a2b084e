-- Returns records: ARGV the retention of finished and of failed jobs in seconds, then ids. '' for a
-- missing job; fewer records than requested if they are large.
--@include _record
--@include _lapsed
local texts = fetch({unpack(ARGV, 3)})
for at, text in ipairs(texts) do
  if not text or lapsed(text, ARGV[1], ARGV[2]) then texts[at] = '' end
end
return texts
