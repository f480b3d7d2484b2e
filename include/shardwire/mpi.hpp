// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sessions of MPI programs. Not part of shardwire/shardwire.hpp: include it after <mpi.h> of the program's MPI. The
// library itself does not depend on MPI.

#ifndef MPI_VERSION
#error "shardwire/mpi.hpp: include <mpi.h> first"
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shardwire/bootstrap.hpp"
#include "shardwire/error.hpp"
#include "shardwire/types.hpp"

namespace shardwire {

namespace detail {

inline void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  throw Error(ErrorCode::transport_failed, std::string(call) + ": " + text.data());
}

/// Carries one value per session from rank 0 of a communicator to all other ranks. Uses single messages, because a
/// broadcast would pass through late ranks. Receives only messages that have arrived, so a rank that gives up has no
/// request to cancel.
class MpiStore final : public KeyValueStore {
 public:
  MpiStore(MPI_Comm comm, std::chrono::nanoseconds timeout) : comm_(comm), timeout_(timeout) {}

  void put(const std::string& key, const Bytes& value) override { put_within(key, value, timeout_); }

  void put_within(const std::string&, const Bytes& value, std::chrono::nanoseconds timeout) override {
    if (value_) {
      throw Error(ErrorCode::invalid_argument,
                  "a bootstrap of bootstrap_from_mpi() is for one session: make another for the next");
    }
    if (value.size() > max_bytes) {
      throw Error(ErrorCode::invalid_argument,
                  "too many addresses for one message: SHARDWIRE_INTERFACE names an interface");
    }
    value_ = value;
    int ranks = 0;
    check_mpi(MPI_Comm_size(comm_, &ranks), "MPI_Comm_size");
    Sends sends{std::make_unique<Bytes>(value),
                std::vector<MPI_Request>(static_cast<std::size_t>(ranks - 1), MPI_REQUEST_NULL)};
    for (int rank = 1; rank < ranks; ++rank) {
      check_mpi(MPI_Isend(sends.message->data(), static_cast<int>(value.size()), MPI_BYTE, rank, tag, comm_,
                          &sends.requests[static_cast<std::size_t>(rank) - 1]),
                "MPI_Isend");
    }
    if (await(sends.requests, std::min(timeout, timeout_))) return;
    std::vector<Rank> missing;
    std::string names;
    for (std::size_t i = 0; i < sends.requests.size(); ++i) {
      if (sends.requests[i] == MPI_REQUEST_NULL) continue;
      missing.push_back(Rank{static_cast<std::int32_t>(i) + 1});
      names += (names.empty() ? "" : ", ") + std::to_string(i + 1);
    }
    throw Error(ErrorCode::timed_out, "waited in vain for ranks of the communicator to join: " + names, missing);
  }

  /// The oldest message on the first call, the newest on later calls. Ranks thus join successive sessions of rank 0 in
  /// order, and skip messages of joins that they missed once those addresses no longer answer.
  std::optional<Bytes> get(const std::string&, std::chrono::nanoseconds timeout) override {
    if (value_) {
      while (receive()) {
      }
      return value_;
    }
    const auto began = std::chrono::steady_clock::now();
    while (!receive()) {
      if (std::chrono::steady_clock::now() - began >= timeout) return std::nullopt;
      std::this_thread::sleep_for(interval);
    }
    return value_;
  }

 private:
  static constexpr std::size_t max_bytes =
      1024;  // small enough for MPI to send eagerly on most networks, even if receivers are late
  static constexpr int tag = 21351;
  static constexpr std::chrono::milliseconds interval{1};

  /// Messages in flight. Late ranks may still receive unsent ones: MPI goes on reading these bytes, so they are leaked
  /// on purpose.
  struct Sends {
    Sends(std::unique_ptr<Bytes> bytes, std::vector<MPI_Request> under_way)
        : message(std::move(bytes)), requests(std::move(under_way)) {}
    ~Sends() {
      bool all_left = true;
      for (MPI_Request& request : requests) {
        if (request == MPI_REQUEST_NULL) continue;
        all_left = false;
        static_cast<void>(MPI_Request_free(&request));
      }
      if (!all_left) static_cast<void>(message.release());
    }
    Sends(const Sends&) = delete;
    Sends& operator=(const Sends&) = delete;

    std::unique_ptr<Bytes> message;
    std::vector<MPI_Request> requests;
  };

  /// False if some requests are still pending after `timeout`; completed ones are null.
  static bool await(std::vector<MPI_Request>& requests, std::chrono::nanoseconds timeout) {
    const auto began = std::chrono::steady_clock::now();
    while (true) {
      bool all = true;
      for (MPI_Request& request : requests) {
        int done = 1;
        if (request != MPI_REQUEST_NULL) check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        all = all && done != 0;
      }
      if (all) return true;
      if (std::chrono::steady_clock::now() - began >= timeout) return false;
      std::this_thread::sleep_for(interval);
    }
  }

  /// False if there is no message.
  bool receive() {
    int there = 0;
    MPI_Status status{};
    check_mpi(MPI_Iprobe(0, tag, comm_, &there, &status), "MPI_Iprobe");
    if (there == 0) return false;
    int size = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    Bytes message(static_cast<std::size_t>(size));
    check_mpi(MPI_Recv(message.data(), size, MPI_BYTE, 0, tag, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
    value_ = std::move(message);
    return true;
  }

  MPI_Comm comm_;
  std::chrono::nanoseconds timeout_;
  std::optional<Bytes> value_;
};

}  // namespace detail

/// Members are the ranks of `comm`; while they join, rank 0 sends its addresses to each, with a job key if there is none.
/// Takes run id, interface and job key from the environment, as bootstrap_from_store() does.
/// Collective: this call is not; the Session::join() that uses it is, over `comm`. Use each bootstrap for one session.
///             Joining is no barrier: the first gather() names missing members. Before rank 0 opens the next session
///             over `comm`, every rank must have joined the previous one (a gather() has returned) or given up on it.
///             Use separate communicators for sessions that are joined at the same time. After a failed join make new
///             bootstraps: each rank then skips messages of joins that it missed, which takes a second.
/// Deadline:   that of the join, for all ranks: SessionOptions::join_timeout, else SHARDWIRE_JOIN_TIMEOUT. If MPI does
///             not buffer messages, rank 0 waits that long for late ranks, or up to `timeout` if that is less.
/// Messages:   have the tag 21351; until the join has ended, no rank may receive or probe with MPI_ANY_SOURCE or
///             MPI_ANY_TAG on `comm`.
/// Ownership:  borrows `comm` until Session::join() has returned or thrown. If a join of rank 0 fails while MPI still
///             has messages to deliver, up to 1 KiB stays allocated for late ranks to receive.
/// Threads:    bootstrap_from_mpi() and Session::join() call MPI on their caller's thread and on no other. Any level of
///             MPI_Init_thread() suffices that allows this thread to call MPI.
/// Errors:     throws Error{invalid_argument} before MPI_Init(), after MPI_Finalize(), and for a null communicator or
///             an intercommunicator; Error{transport_failed} if MPI runs alone although a launcher has started several
///             processes (the launcher belongs to another MPI, or has no server). Session::join() throws
///             Error{timed_out} naming rank 0, or on rank 0 the ranks that have not received its message;
///             Error{invalid_argument} on rank 0 for a bootstrap that was used before; Error{transport_failed} for an
///             MPI fault, if the communicator's error handler returns.
inline Bootstrap bootstrap_from_mpi(MPI_Comm comm, std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
  int initialised = 0;
  int finalised = 0;
  detail::check_mpi(MPI_Initialized(&initialised), "MPI_Initialized");
  detail::check_mpi(MPI_Finalized(&finalised), "MPI_Finalized");
  if (initialised == 0 || finalised != 0 || comm == MPI_COMM_NULL) {
    throw Error(ErrorCode::invalid_argument,
                "bootstrap_from_mpi: needs a communicator, between MPI_Init and MPI_Finalize");
  }
  int two_groups = 0;
  detail::check_mpi(MPI_Comm_test_inter(comm, &two_groups), "MPI_Comm_test_inter");
  if (two_groups != 0) throw Error(ErrorCode::invalid_argument, "bootstrap_from_mpi: not over an intercommunicator");
  int world_size = 0;
  detail::check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &world_size), "MPI_Comm_size");
  const auto launched = world_size_from_env();
  if (world_size == 1 && launched.value_or(1) > 1) {
    throw Error(ErrorCode::transport_failed, "MPI runs alone, but the launcher speaks of " + std::to_string(*launched) +
                                                 " processes: it is not that of this MPI (srun needs --mpi=pmix)");
  }
  int rank = 0;
  int size = 0;
  detail::check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  detail::check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return bootstrap_from_store(std::make_shared<detail::MpiStore>(comm, timeout), rank, size);
}

}  // namespace shardwire
