-- Records: ARGV the seconds for which ended jobs are there, and failed ones, then ids. '' for what is
-- not there; of fewer than were asked for where they are large.
--@include _record
--@include _lapsed
local texts = fetch({unpack(ARGV, 3)})
for at, text in ipairs(texts) do
  if not text or lapsed(text, ARGV[1], ARGV[2]) then texts[at] = '' end
end
return texts
