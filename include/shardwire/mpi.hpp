// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sessions of MPI programs. Not part of shardwire/shardwire.hpp; include it after <mpi.h>, of whichever MPI the program uses:
// the library knows none.

#ifndef MPI_VERSION
#error "shardwire/mpi.hpp: include <mpi.h> first"
#endif

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
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

/// One value, told once by rank 0 of a communicator to all others. By single messages: a broadcast would pass through ranks that
/// are late.
class MpiStore final : public KeyValueStore {
 public:
  MpiStore(MPI_Comm comm, std::chrono::nanoseconds timeout) : comm_(comm), timeout_(timeout) {}

  void put(const std::string&, const Bytes& value) override {
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
    std::vector<MPI_Request> requests(static_cast<std::size_t>(ranks - 1), MPI_REQUEST_NULL);
    auto message = std::make_unique<Bytes>(value);
    for (int rank = 1; rank < ranks; ++rank) {
      check_mpi(MPI_Isend(message->data(), static_cast<int>(message->size()), MPI_BYTE, rank, tag, comm_,
                          &requests[static_cast<std::size_t>(rank) - 1]),
                "MPI_Isend");
    }
    if (await(requests, timeout_)) return;
    static_cast<void>(message.release());  // late ranks may still take it
    std::vector<Rank> missing;
    std::string names;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i] == MPI_REQUEST_NULL) continue;
      check_mpi(MPI_Request_free(&requests[i]), "MPI_Request_free");
      missing.push_back(Rank{static_cast<std::int32_t>(i) + 1});
      names += (names.empty() ? "" : ", ") + std::to_string(i + 1);
    }
    throw Error(ErrorCode::timed_out, "waited in vain for ranks of the communicator to join: " + names, missing);
  }

  std::optional<Bytes> get(const std::string&, std::chrono::nanoseconds timeout) override {
    if (value_) return value_;
    Bytes message(max_bytes);
    std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
    check_mpi(MPI_Irecv(message.data(), static_cast<int>(max_bytes), MPI_BYTE, 0, tag, comm_, request.data()),
              "MPI_Irecv");
    MPI_Status status{};
    const bool came = await(request, timeout, &status);
    if (!came) {  // it may come this very moment
      check_mpi(MPI_Cancel(request.data()), "MPI_Cancel");
      check_mpi(MPI_Wait(request.data(), &status), "MPI_Wait");
      int cancelled = 0;
      check_mpi(MPI_Test_cancelled(&status, &cancelled), "MPI_Test_cancelled");
      if (cancelled != 0) return std::nullopt;
    }
    int size = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    message.resize(static_cast<std::size_t>(size));
    value_ = std::move(message);
    return value_;
  }

 private:
  static constexpr std::size_t max_bytes = 1024;  // leaves rank 0 at once on most networks, whoever is late
  static constexpr int tag = 21351;

  /// False when some have not ended by then; those that have are null.
  static bool await(std::vector<MPI_Request>& requests, std::chrono::nanoseconds timeout,
                    MPI_Status* status = MPI_STATUS_IGNORE) {
    const auto give_up = std::chrono::steady_clock::now() + timeout;
    while (true) {
      bool all = true;
      for (MPI_Request& request : requests) {
        int done = 1;
        if (request != MPI_REQUEST_NULL) check_mpi(MPI_Test(&request, &done, status), "MPI_Test");
        all = all && done != 0;
      }
      if (all) return true;
      if (std::chrono::steady_clock::now() >= give_up) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  MPI_Comm comm_;
  std::chrono::nanoseconds timeout_;
  std::optional<Bytes> value_;
};

}  // namespace detail

/// Members are the ranks of `comm`; while they join, rank 0 sends its addresses to each. Run id, interface and job key are taken
/// from the environment, as by bootstrap_from_store().
/// Collective: making the bootstrap is not; the Session::join() with it is, over `comm`. Rank 0 waits up to `timeout` where MPI
///             does not buffer a message for a rank that is late. Each bootstrap is for one session.
/// Messages:   have the tag 21351; no rank may have a receive from any source or with any tag under way on `comm` meanwhile.
/// Ownership:  borrows `comm` until the session has joined.
/// Threads:    MPI is called by Session::join() on the thread that calls it, and by no other.
/// Errors:     throws Error{invalid_argument} before MPI_Init(), after MPI_Finalize(), and for a communicator that is null or
///             has two groups; Error{transport_failed} when MPI runs alone although a launcher has started several processes
///             (it is that of another MPI, or has no server). Session::join() throws Error{timed_out} naming rank 0, or on
///             rank 0 those that have not come; Error{transport_failed} for a fault of MPI, if the communicator's error handler
///             returns.
inline Bootstrap bootstrap_from_mpi(MPI_Comm comm, std::chrono::nanoseconds timeout = std::chrono::minutes(1)) {
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
