// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <csignal>

namespace shardwire::support {

/// For a thread of the library, at its start: gives it a name, and blocks all signals, which are for the embedding program's
/// threads, except those raised by faults of this thread.
inline void begin_own_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, own);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
}

}  // namespace shardwire::support
