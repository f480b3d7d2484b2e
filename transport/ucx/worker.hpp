// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <deque>
#include <exception>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/ucx/handles.hpp"

namespace shardwire::transport::ucx {

inline constexpr unsigned message_id = 1;  // the only active message
/// Both sides must agree on the size, so it is part of the domain.
inline constexpr const char* tcp_segment = "512K";

struct Version {
  unsigned major = 0, minor = 0, release = 0;
};
Version version_of_library();
std::string library_version();
/// Opens a context for active messages over the transports in UCX_TLS, by default only hardware; `with_cuda` adds
/// support for GPU memory. Errors: throws Error if UCX cannot open it.
ContextHandle open_serving_context(bool with_cuda);
/// Opens a context for reads through one port, such as "mlx5_0:1", over these transports. Errors: the same.
ContextHandle open_reading_context(const std::string& port, const std::string& transports);
/// The value of a UCX variable, from the environment or else from ucx.conf.
std::string chosen_value(const char* variable);
/// Whether it supports memory of NVIDIA GPUs.
bool knows_cuda(ucp_context* context);
/// Whether this UCX can register memory on any thread in that context.
bool registers_on_any_thread(ucp_context* context);

class MappedMemory;
class RemoteKey;

struct Operation;

/// State shared by the reads from one peer.
struct ReadWindow {
  int under_way = 0;
  Outcome verdict;                   ///< the reason, once they fail
  std::vector<Operation*> failed{};  ///< ended lists that must receive the reason
  bool abandoned = false;            ///< no owner is left to report to
};

/// A list of reads with one completion.
struct ReadList {
  std::shared_ptr<const RemoteKey> key;
  std::shared_ptr<ReadWindow> window;
  std::vector<ReadRange> ranges;
  std::vector<std::shared_ptr<const MappedMemory>> into;  ///< one per range that lies on a device; empty: none does
  std::size_t next = 0;                                   ///< to be posted
  int under_way = 0;
  ucs_status_t status = UCS_OK;
};

/// A posted operation, from posting until its completion has run. UCX holds a pointer to it meanwhile.
struct Operation {
  class Worker* worker = nullptr;
  const void* endpoint = nullptr;  ///< our endpoint that it was posted to
  std::uint64_t peer = 0;          ///< fabric whose death ends it
  WallClock::time_point began{};   ///< set by Worker::add()
  const char* name = "";
  ByteCount expected_bytes = 0;
  ucp_ep* reply = nullptr;  ///< of a rendezvous receive: the endpoint that UCX created for it
  Bytes header;
  ConstMemory payload;
  Completion done;  ///< empty: abandoned
  Outcome outcome;
  Outcome verdict;  ///< overrides UCX's status of a failure when we know more
  ReadList reads;   ///< if it is a list of reads
};

/// A message whose handler has not run yet. Its data belongs to UCX until it is received or released.
struct Arrival {
  std::array<std::byte, 128> header{};
  std::size_t header_bytes = 0;
  void* data = nullptr;
  std::size_t payload_bytes = 0;
  bool rendezvous = false;
  ucp_ep* reply = nullptr;
  bool held = false;  ///< data must be released
  Bytes copy;         ///< of data that UCX does not let us hold
};

/// State of an endpoint for UCX's callbacks; see PeerConnection.
struct Handshake {
  ucp_ep* endpoint = nullptr;
  bool over = false;
  bool abandoned = false;  ///< to be closed once it is over
  ucs_status_t error = UCS_OK;
};
/// Returns a request, or a status.
ucs_status_ptr_t close_by_force(ucp_ep* endpoint);

/// A UCX context with its one worker, and their operations. UCX's callbacks only move things between the lists below;
/// the fabric runs handlers and completions after UCX has returned, so they may post, connect and destroy freely.
class Worker {
 public:
  /// Errors: throws Error if UCX cannot open it.
  explicit Worker(ContextHandle context);
  /// Bounded: at most 0.4 s.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// From here on, messages arrive. Errors: throws Error.
  void accept_messages();

  [[nodiscard]] ucp_worker* handle() const { return handle_.get(); }
  [[nodiscard]] ucp_context* context() const { return context_.get(); }
  [[nodiscard]] Bytes address() const;
  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// Progresses UCX until it is idle or has done a bounded amount of work. Errors: rethrows errors of callbacks.
  bool progress();
  bool arm();

  /// Keeps the handshake until it is over, and then closes the endpoint if it was abandoned meanwhile.
  void watch(std::shared_ptr<Handshake> handshake) { handshakes_.push_back(std::move(handshake)); }
  /// Registers an operation; the pointer stays valid until it finishes.
  Operation* add(Operation operation);
  /// Ends an operation once: removes it from the list of those under way.
  void finish(Operation* operation, Outcome outcome);
  void finish(Operation* operation, ucs_status_t status);
  /// Takes the return value of a posting function of UCX.
  void posted(Operation* operation, ucs_status_ptr_t request);
  /// Drops the completions that `selected` names, so that they never run.
  template <typename Predicate>
  void drop_completions(Predicate selected) {
    for (auto& [key, operation] : under_way_) {
      if (selected(*operation)) operation->done = {};
    }
    for (auto& operation : finished) {
      if (selected(*operation)) operation->done = {};
    }
  }
  /// Drops finished operations of this endpoint; those under way keep their resources.
  void forget(const void* endpoint) {
    std::erase_if(finished, [&](const auto& operation) { return operation->endpoint == endpoint; });
  }
  /// Reports a fault for operations under way that `selected` names, although UCX keeps them.
  template <typename Predicate>
  void fault(Predicate selected, const Fault& why) {
    std::vector<Operation> reported;
    for (auto& [key, operation] : under_way_) {
      if (!operation->done || !selected(*operation)) continue;
      reported.push_back(Operation{});
      reported.back().endpoint = operation->endpoint;
      reported.back().peer = operation->peer;
      reported.back().done = std::exchange(operation->done, {});
    }
    for (auto& operation : reported) finish(add(std::move(operation)), Outcome(why));
  }
  /// Runs the completions of operations that have finished. False: there were none.
  bool complete();
  void release(Arrival& arrival);
  void release_all();
  /// Detaches the endpoints on which receives from this fabric arrive, if these began until `latest`, and returns them;
  /// the receives are about to end with `why`.
  std::vector<ucp_ep*> replies_of(std::uint64_t fabric, WallClock::time_point latest, const Fault& why);
  /// Closes an endpoint that UCX created, by force.
  void close(ucp_ep* reply);

  std::deque<Arrival> arrivals;
  std::deque<std::unique_ptr<Operation>> finished;

 private:
  void abort_receives();
  void end_handshakes();
  /// Lets operations on the wire end; false if they did not within its time.
  bool drain();
  static ucs_status_t on_active_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                        std::size_t payload_bytes, const ucp_am_recv_param_t* param);

  ContextHandle context_;
  std::unordered_map<Operation*, std::unique_ptr<Operation>> under_way_;
  std::vector<std::shared_ptr<Handshake>> handshakes_;  // not over yet
  std::exception_ptr trouble_;
  WorkerHandle handle_;  // destroyed first: UCX may still call back into the lists above
  int descriptor_ = -1;
};

}  // namespace shardwire::transport::ucx
