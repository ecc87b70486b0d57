-- SPDX-License-Identifier: Apache-2.0
INSERT INTO call_path (thread, id, parent, frame, outside_code, calls, incomplete, entered_before, unwound,
    self_ns, total_ns, complete_ns, min_ns, max_ns
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    calls = calls + excluded.calls,
    incomplete = incomplete + excluded.incomplete,
    entered_before = entered_before + excluded.entered_before,
    unwound = unwound + excluded.unwound,
    self_ns = self_ns + excluded.self_ns,
    total_ns = total_ns + excluded.total_ns,
    complete_ns = complete_ns + excluded.complete_ns,
    min_ns = min(coalesce(min_ns, excluded.min_ns), coalesce(excluded.min_ns, min_ns)),
    max_ns = max(coalesce(max_ns, excluded.max_ns), coalesce(excluded.max_ns, max_ns))
