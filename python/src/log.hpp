// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convert.hpp"

namespace shardwire::python {

/// For SessionOptions::log: hands messages to `target(level, message)`, with the levels of Python's `logging`.
///
/// A thread of Python calls `target`. The session's thread only queues: it must not wait for the interpreter's lock, whose
/// holder may be waiting for the session. A target that is slower than the library misses messages, and is told how many.
LogSink log_to(nb::callable target);

/// Likewise, where join() has got no target: hands messages to the logger "shardwire" of Python's `logging`, if the program
/// has given this logger or one above it a handler. Else empty: the library writes them to standard error.
LogSink log_to_logger();

/// For SessionOptions::telemetry: hands updates to `target(kind, name, value, attributes)`, on another thread of Python. Of
/// updates that are lost because the target is slower, it gets the number, as the counter shardwire.telemetry.dropped.
Telemetry telemetry_to(nb::callable target);

/// Delivers what is still queued. Called when the interpreter ends, after begin_end(), which stops the other threads.
void end_logs();

}  // namespace shardwire::python
