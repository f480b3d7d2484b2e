// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "transport/libfabric/fabric_state.hpp"
#include "transport/libfabric/registration.hpp"

namespace shardwire::transport::libfabric {

/// One-sided reads from one peer, with an endpoint and a completion queue of its own, since libfabric can end reads
/// only together with their endpoint. A bounded number of operations is under way; the rest is queued here.
class ReadChannel {
 public:
  /// `name`: of the peer's serving endpoint. `owner`: tags completions. Errors: throws Error.
  ReadChannel(std::shared_ptr<FabricState> state, const Bytes& name, const void* owner);
  /// As end(), but completions never run.
  ~ReadChannel();
  ReadChannel(const ReadChannel&) = delete;
  ReadChannel& operator=(const ReadChannel&) = delete;

  /// Posts as many as fit; progress() posts the rest.
  void read(const RemoteKey& key, std::span<const ReadRange> ranges, Completion done);
  /// Returns whether anything advanced.
  bool progress();
  /// Ends all reads with `why`; nothing is written afterwards.
  void end(const Fault& why);

  [[nodiscard]] bool failed() const { return broken_since_ || verdict_; }
  /// True if the caller must poll the clock or libfabric, because no descriptor reports the next event.
  [[nodiscard]] bool must_poll() const { return !verdict_ && (broken_since_ || stalled_since_); }
  /// Null once the channel has failed.
  [[nodiscard]] fid* queue() const { return opened_ ? &opened_.queue->fid : nullptr; }

 private:
  struct List {
    RemoteKey key;
    std::vector<ReadRange> ranges;
    LocalMemory local;
    std::size_t next = 0;        // index of the range
    ByteCount posted_bytes = 0;  // of this range
    std::size_t under_way = 0;
    bool mark_posted = false;
    MarkValue mark = 0;
    Completion done;
  };
  /// The context passed to libfabric for an operation; libfabric writes into the first member.
  struct Operation {
    fi_context2 context{};
    List* list = nullptr;
  };

  void post();
  /// False: cannot be posted now.
  bool post(List& list);
  bool post(List& list, const Memory& into, void* descriptor, std::uint64_t from, std::uint64_t key);
  /// Posts the read of the mark after the ranges have arrived. False: cannot be posted now.
  bool post_mark(List& list);
  bool complete();
  void completed(void* context);
  void finish(List& list, const Outcome& outcome);
  void break_off(int error, const char* what);
  void stop();
  void judge();

  std::shared_ptr<FabricState> state_;  // owners: the fabric and its endpoints
  const void* owner_;
  std::vector<Operation> operations_;  // one per operation under way; outlives the endpoint
  std::vector<Operation*> free_;
  std::deque<std::unique_ptr<List>> lists_;  // not ended, in the order of their posts
  std::deque<List*> waiting_;                // not completely posted
  OpenEndpoint opened_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::optional<WallClock::time_point> stalled_since_;  // nothing under way, and nothing accepted
  std::optional<WallClock::time_point> broken_since_;
  Fault failure_;    // set once broken
  Outcome verdict_;  // the reason why all reads end
};

}  // namespace shardwire::transport::libfabric
