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

inline constexpr unsigned message_id = 1;  // the one active message
/// Both sides have to agree, so it is part of the domain.
inline constexpr const char* tcp_segment = "512K";

struct Version {
  unsigned major = 0, minor = 0, release = 0;
};
Version version_of_library();
std::string library_version();
/// For active messages, over what UCX_TLS names, else over hardware alone, and with what it knows memory of GPUs by if so wanted.
/// Errors: throws Error when UCX cannot open it.
ContextHandle open_serving_context(bool with_cuda);
/// For reads through one port, e.g. "mlx5_0:1", by these transports. Errors: the same.
ContextHandle open_reading_context(const std::string& port, const std::string& transports);
/// A variable of UCX, or what ucx.conf says instead.
std::string chosen_value(const char* variable);
/// Whether it knows memory of NVIDIA GPUs.
bool knows_cuda(ucp_context* context);
/// Whether this UCX can do so in that context.
bool registers_on_any_thread(ucp_context* context);

class MappedMemory;
class RemoteKey;

struct Operation;

/// What the reads to one peer share.
struct ReadWindow {
  int under_way = 0;
  Outcome verdict;                   ///< why they fail, once they do
  std::vector<Operation*> failed{};  ///< lists that have ended, and are to be told why
  bool abandoned = false;            ///< nobody will tell them
};

/// A list of reads with one completion.
struct ReadList {
  std::shared_ptr<const RemoteKey> key;
  std::shared_ptr<ReadWindow> window;
  std::vector<ReadRange> ranges;
  std::vector<std::shared_ptr<const MappedMemory>> into;  ///< of each range that lies on a device; empty: none does
  std::size_t next = 0;                                   ///< to be posted
  int under_way = 0;
  ucs_status_t status = UCS_OK;
};

/// A posted operation, from posting until its completion has run. UCX holds a pointer to it meanwhile.
struct Operation {
  class Worker* worker = nullptr;
  const void* endpoint = nullptr;  ///< of ours that it was posted to
  std::uint64_t peer = 0;          ///< fabric whose death ends it
  Clock::time_point began{};       ///< set by Worker::add()
  const char* name = "";
  ByteCount expected_bytes = 0;
  ucp_ep* reply = nullptr;  ///< of a rendezvous receive: the endpoint that UCX made for it
  Bytes header;
  ConstMemory payload;
  Completion done;  ///< empty: given up
  Outcome outcome;
  Outcome verdict;  ///< what a failure is to be called, where we know better than UCX
  ReadList reads;   ///< of a list of reads
};

/// A message whose handler has not run yet. Its data belongs to UCX until it is received or released.
struct Arrival {
  std::array<std::byte, 128> header{};
  std::size_t header_bytes = 0;
  void* data = nullptr;
  std::size_t payload_bytes = 0;
  bool rendezvous = false;
  ucp_ep* reply = nullptr;
  bool held = false;  ///< data has to be released
  Bytes copy;         ///< of data that UCX does not let us hold
};

/// What UCX's callbacks know of an endpoint; see PeerConnection.
struct Handshake {
  ucp_ep* endpoint = nullptr;
  bool over = false;
  bool abandoned = false;  ///< to be closed once it is over
  ucs_status_t error = UCS_OK;
};
/// Returns a request, or a status.
ucs_status_ptr_t close_by_force(ucp_ep* endpoint);

/// A UCX context with its one worker, and their operations. UCX's callbacks only move things between the lists below; the
/// fabric runs handlers and completions once UCX has returned, so they may post, connect and destroy freely.
class Worker {
 public:
  /// Errors: throws Error when UCX cannot open it.
  explicit Worker(ContextHandle context);
  /// Bounded, 0.4 s at most.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// From here on, messages arrive. Errors: throws Error.
  void accept_messages();

  [[nodiscard]] ucp_worker* handle() const { return handle_.get(); }
  [[nodiscard]] ucp_context* context() const { return context_.get(); }
  [[nodiscard]] Bytes address() const;
  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// Lets UCX work until it has nothing to do, or has done a good deal. Errors: rethrows what a callback could not do.
  bool progress();
  bool arm();

  /// Keeps it until it is over, and closes the endpoint then if that was abandoned meanwhile.
  void watch(std::shared_ptr<Handshake> handshake) { handshakes_.push_back(std::move(handshake)); }
  /// Registers an operation; the pointer stays valid until it finishes.
  Operation* add(Operation operation);
  /// Ends an operation once: takes it off the list of those under way.
  void finish(Operation* operation, Outcome outcome);
  void finish(Operation* operation, ucs_status_t status);
  /// What a posting function of UCX returned.
  void posted(Operation* operation, ucs_status_ptr_t request);
  /// Drops the completions that `selected` names, so that they never run.
  template <typename Predicate>
  void give_up(Predicate selected) {
    for (auto& [key, operation] : under_way_) {
      if (selected(*operation)) operation->done = {};
    }
    for (auto& operation : finished) {
      if (selected(*operation)) operation->done = {};
    }
  }
  /// Drops what has finished for this endpoint; what is still under way keeps what it holds.
  void forget(const void* endpoint) {
    std::erase_if(finished, [&](const auto& operation) { return operation->endpoint == endpoint; });
  }
  /// Reports a fault for those under way that `selected` names, although UCX keeps them.
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
  /// Runs the completions of what has finished by now. False: there were none.
  bool complete();
  void release(Arrival& arrival);
  void release_all();
  /// Takes the endpoints that receives from this fabric arrive on off them, if these began until `latest`; they are about
  /// to end, for `why`.
  std::vector<ucp_ep*> replies_of(std::uint64_t fabric, Clock::time_point latest, const Fault& why);
  /// Cuts an endpoint that UCX made.
  void close(ucp_ep* reply);

  std::deque<Arrival> arrivals;
  std::deque<std::unique_ptr<Operation>> finished;

 private:
  void abort_receives();
  void end_handshakes();
  /// Lets what is under way on the wire end; false when it did not within its time.
  bool settle();
  static ucs_status_t on_active_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                        std::size_t payload_bytes, const ucp_am_recv_param_t* param);

  ContextHandle context_;
  std::unordered_map<Operation*, std::unique_ptr<Operation>> under_way_;
  std::vector<std::shared_ptr<Handshake>> handshakes_;  // that are not over
  std::exception_ptr trouble_;
  WorkerHandle handle_;  // destroyed first: UCX may still call back into the lists above
  int descriptor_ = -1;
};

}  // namespace shardwire::transport::ucx
