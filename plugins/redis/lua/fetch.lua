-- Records: ARGV ids. '' for what is not there.
--@include _record
local texts = fetch(ARGV)
for at = 1, #ARGV do texts[at] = texts[at] or '' end
return texts
