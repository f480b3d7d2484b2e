// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "control/tls.hpp"
#include "paths/fabrics.hpp"
#include "restore/probe.hpp"
#include "runtime/call_thread.hpp"
#include "runtime/loop.hpp"
#include "session/settings.hpp"
#include "transport/collective.hpp"

namespace shardwire::detail {

/// The parts that a session takes from the process around it. `Session::join()` makes those of a real process, and with them the
/// session's thread; simulations supply their own.
struct Surroundings {
  std::shared_ptr<Loop> loop;  // owners: see SessionState::running()
  std::function<std::shared_ptr<Fabrics>(const Settings& settings, const Fabrics::LeftOut& left_out)> open_fabrics;
  std::span<const transport::CollectiveTransport> collectives = transport::registered_collectives();
  std::string host;  ///< names this host among those of the job
  /// Encrypts control connections; null, with the reason, if nothing can. Called when there is a key.
  std::function<const TlsModule*(std::string& why_not)> load_tls{};
  restore::Probe* probe = nullptr;               ///< of a drill; null: none. Outlives the session
  StartThread start_thread = RealThread::start;  ///< for exchanges that run beside their callers
};

/// Starts the thread of a session.
Surroundings surroundings_of_process();

}  // namespace shardwire::detail
