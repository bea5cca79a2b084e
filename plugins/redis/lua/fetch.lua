-- Records: ARGV ids. '' for what is not there; of fewer than were asked for where they are large.
--@include _record
local texts = fetch(ARGV)
for at = 1, #texts do texts[at] = texts[at] or '' end
return texts
