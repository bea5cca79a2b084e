"""The state of an application, for programs with an event loop; see `fennel.state`."""

from __future__ import annotations

from chancy.plugins.redis.compat.fennel import state
from chancy.plugins.redis.compat.fennel.calls import awaited

count_jobs = awaited(state.count_jobs)
count_results = awaited(state.count_results)
get_groups = awaited(state.get_groups)
get_heartbeats = awaited(state.get_heartbeats)
get_info = awaited(state.get_info)
get_job = awaited(state.get_job)
get_messages = awaited(state.get_messages)
get_result = awaited(state.get_result)
get_schedule = awaited(state.get_schedule)
get_state = awaited(state.get_state)
get_status = awaited(state.get_status)
get_stream = awaited(state.get_stream)
