// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "transport/libfabric/fabric_state.hpp"
#include "transport/libfabric/registration.hpp"

namespace shardwire::transport::libfabric {

/// One-sided reads from one peer: an endpoint and a completion queue for it alone, since libfabric can end reads only with
/// their endpoint. A bounded number of operations is under way, the rest waits here.
class ReadChannel {
 public:
  /// `name`: of the peer's serving endpoint. `owner`: marks completions. Errors: throws Error.
  ReadChannel(std::shared_ptr<FabricState> state, const Bytes& name, const void* owner);
  /// As end(), and completions never run.
  ~ReadChannel();
  ReadChannel(const ReadChannel&) = delete;
  ReadChannel& operator=(const ReadChannel&) = delete;

  /// Posts what fits; the rest follows with progress().
  void read(const RemoteKey& key, std::span<const ReadRange> ranges, Completion done);
  /// Whether anything has moved.
  bool progress();
  /// All reads end for `why`, and nothing is written any more.
  void end(const Fault& why);

  [[nodiscard]] bool failed() const { return broken_since_ || verdict_; }
  /// The clock or libfabric has to be looked at again, and no descriptor says when.
  [[nodiscard]] bool must_poll() const { return !verdict_ && (broken_since_ || stalled_since_); }
  /// None once it has failed.
  [[nodiscard]] fid* queue() const { return opened_ ? &opened_.queue->fid : nullptr; }

 private:
  struct List {
    RemoteKey key;
    std::vector<ReadRange> ranges;
    LocalMemory local;
    std::size_t next = 0;        // range
    ByteCount posted_bytes = 0;  // of it
    std::size_t under_way = 0;
    bool mark_posted = false;
    MarkValue mark = 0;
    Completion done;
  };
  /// What libfabric is told of an operation; it writes into the first member.
  struct Operation {
    fi_context2 context{};
    List* list = nullptr;
  };

  void post();
  /// False: not now.
  bool post(List& list);
  bool post(List& list, const Memory& into, void* descriptor, std::uint64_t from, std::uint64_t key);
  /// Once its ranges have come. False: not now.
  bool post_mark(List& list);
  bool complete();
  void completed(void* context);
  void finish(List& list, const Outcome& outcome);
  void break_off(int error, const char* what);
  void stop();
  void judge();

  std::shared_ptr<FabricState> state_;  // owners: the fabric and its endpoints
  const void* owner_;
  std::vector<Operation> operations_;  // as many as may be under way; outlives the endpoint
  std::vector<Operation*> free_;
  std::deque<std::unique_ptr<List>> lists_;  // that have not ended, in the order of their posts
  std::deque<List*> waiting_;                // those of which not all is posted
  OpenEndpoint opened_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::optional<Clock::time_point> stalled_since_;  // nothing under way, and nothing is taken
  std::optional<Clock::time_point> broken_since_;
  Fault failure_;    // once broken
  Outcome verdict_;  // why all end
};

}  // namespace shardwire::transport::libfabric
