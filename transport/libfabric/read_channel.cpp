// SPDX-License-Identifier: Apache-2.0
#include "transport/libfabric/read_channel.hpp"

#include <fmt/core.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <mutex>
#include <utility>

#include "transport/read_check.hpp"

namespace shardwire::transport::libfabric {
namespace {

// The first read makes the connection, which takes a moment; after a peer's death libfabric returns "again" for ever.
constexpr auto stall_limit = std::chrono::seconds(10);
// The report that a peer has gone may arrive after its connection has broken.
constexpr auto verdict_time = std::chrono::milliseconds(100);

// How a provider reports a refused read: its connection has ended.
bool may_be_refusal(int error) {
  constexpr int refusals[] = {FI_ECANCELED, FI_ECONNRESET, FI_ENOTCONN, FI_ECONNABORTED, FI_ESHUTDOWN,
                              FI_EACCES,    FI_EPERM,      FI_ENOKEY,   FI_EREMOTEIO,    FI_EIO};
  return std::ranges::find(refusals, error) != std::end(refusals);
}

// An endpoint that is not polled writes nothing. Keeps an endpoint that must not be closed.
void leave_behind(std::shared_ptr<Domain> domain, OpenEndpoint opened) {
  struct Left {
    std::shared_ptr<Domain> domain;
    OpenEndpoint opened;
  };
  static auto& mutex = *new std::mutex;
  static auto& left = *new std::vector<Left>;
  const std::lock_guard lock(mutex);
  left.push_back({std::move(domain), std::move(opened)});
}

}  // namespace

ReadChannel::ReadChannel(std::shared_ptr<FabricState> state, const Bytes& name, const void* owner)
    : state_(std::move(state)),
      owner_(owner),
      operations_(state_->domain->rules().window),
      opened_(state_->domain->open_endpoint(operations_.size())) {
  free_.reserve(operations_.size());
  for (Operation& one : operations_) free_.push_back(&one);
  const int inserted = fi_av_insert(opened_.addresses.get(), name.data(), 1, &peer_, 0, nullptr);
  if (inserted != 1) throw Error(ErrorCode::transport_failed, "the provider does not take the peer's address");
  state_->wake.listen(opened_.descriptor);
}

ReadChannel::~ReadChannel() {
  stop();
}

void ReadChannel::read(const RemoteKey& key, std::span<const ReadRange> ranges, Completion done) {
  auto list = std::make_unique<List>();
  list->key = key;
  list->done = std::move(done);
  list->ranges.reserve(ranges.size());
  std::ranges::copy_if(ranges, std::back_inserter(list->ranges),
                       [](const ReadRange& range) { return !range.into.empty(); });
  if (list->ranges.empty()) return state_->finished.add(owner_, std::move(list->done), {});
  if (verdict_) return state_->finished.add(owner_, std::move(list->done), verdict_);
  if (opened_) {
    try {
      list->local = register_ranges(*state_->domain, opened_.endpoint.get(), list->ranges, *state_->gpus);
    } catch (const Error& error) {
      return state_->finished.add(owner_, std::move(list->done), fault_of_target(error));
    }
  }
  waiting_.push_back(list.get());
  lists_.push_back(std::move(list));
  post();
}

void ReadChannel::post() {
  while (opened_ && !waiting_.empty()) {
    List& list = *waiting_.front();
    while (list.next < list.ranges.size()) {
      if (!post(list)) return;
    }
    if (list.under_way == 0 && !post_mark(list)) return;
    waiting_.pop_front();
  }
}

bool ReadChannel::post(List& list) {
  const ReadRange& range = list.ranges[list.next];
  const ByteCount bytes = std::min(range.into.bytes - list.posted_bytes, state_->domain->rules().max_read_bytes);
  if (!post(list, range.into.part(list.posted_bytes, bytes),
            list.local.descriptors.empty() ? nullptr : list.local.descriptors[list.next],
            list.key.begin + range.offset_bytes + list.posted_bytes, list.key.key)) {
    return false;
  }
  list.posted_bytes += bytes;
  if (list.posted_bytes == range.into.bytes) {
    ++list.next;
    list.posted_bytes = 0;
  }
  return true;
}

bool ReadChannel::post(List& list, const Memory& into, void* descriptor, std::uint64_t from, std::uint64_t key) {
  if (free_.empty()) return false;
  Operation* const operation = free_.back();
  operation->list = &list;
  const ssize_t status = fi_read(opened_.endpoint.get(), into.address, static_cast<std::size_t>(into.bytes), descriptor,
                                 peer_, from, key, &operation->context);
  if (status == -FI_EAGAIN) {
    const bool idle = free_.size() == operations_.size();
    if (idle && !stalled_since_) stalled_since_ = WallClock::now();
    return false;
  }
  if (status != 0) {
    break_off(static_cast<int>(-status), "read a peer's memory");
    return false;
  }
  stalled_since_.reset();
  free_.pop_back();
  ++list.under_way;
  return true;
}

bool ReadChannel::progress() {
  const bool advanced = complete();
  post();
  const auto now = WallClock::now();
  if (stalled_since_ && now - *stalled_since_ > stall_limit) {
    break_off(FI_ETIMEDOUT, "connect to a peer to read its memory");
  }
  if (broken_since_ && !verdict_ && now - *broken_since_ > verdict_time) judge();
  return advanced;
}

bool ReadChannel::complete() {
  std::array<fi_cq_entry, 64> entries;
  bool any = false;
  while (opened_) {
    const ssize_t count = fi_cq_read(opened_.queue.get(), entries.data(), entries.size());
    if (count == -FI_EAGAIN || count == 0) break;
    any = true;
    if (count > 0) {
      std::for_each_n(entries.begin(), count, [this](const fi_cq_entry& one) { completed(one.op_context); });
    } else if (count == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      (void)fi_cq_readerr(opened_.queue.get(), &error, 0);
      break_off(error.err < 0 ? -error.err : error.err, "read a peer's memory");  // one provider negates it
    } else {
      break_off(static_cast<int>(-count), "look for reads that have ended");
    }
  }
  return any;
}

void ReadChannel::completed(void* context) {
  auto* const operation = static_cast<Operation*>(context);  // its first member
  List& list = *std::exchange(operation->list, nullptr);
  free_.push_back(operation);
  --list.under_way;
  if (list.under_way > 0 || list.next < list.ranges.size()) return;
  if (state_->domain->rules().hardware || list.mark_posted) return finish(list, {});
  waiting_.push_front(&list);  // to post its mark
}

bool ReadChannel::post_mark(List& list) {
  const auto bytes = std::as_writable_bytes(std::span(&list.mark, 1));
  list.mark_posted = post(list, host_memory(bytes), nullptr, list.key.mark_begin, list.key.mark_key);
  return list.mark_posted;
}

void ReadChannel::finish(List& list, const Outcome& outcome) {
  state_->finished.add(owner_, std::move(list.done), outcome);
  std::erase_if(lists_, [&](const auto& one) { return one.get() == &list; });
}

// Reads under way cannot be told from refused ones, and after one refusal a connection reads no more.
void ReadChannel::break_off(int error, const char* what) {
  if (failed()) return;
  failure_ = fault_of(error == 0 ? FI_EOTHER : error, what);
  if (may_be_refusal(error)) {
    failure_ = {ErrorCode::withdrawn,
                fmt::format("the memory is not registered any more, or the connection is over ({})", failure_.message)};
  }
  broken_since_ = WallClock::now();
  stop();
}

void ReadChannel::stop() {
  stalled_since_.reset();
  if (!opened_) return;
  state_->wake.unlisten(opened_.descriptor);
  OpenEndpoint ended = std::exchange(opened_, {});
  const bool idle = free_.size() == operations_.size();
  if (!idle && !state_->domain->rules().close_ends_reads) leave_behind(state_->domain, std::move(ended));
}

void ReadChannel::judge() {
  if (!verdict_) verdict_ = failure_;
  waiting_.clear();
  for (const auto& list : std::exchange(lists_, {})) state_->finished.add(owner_, std::move(list->done), verdict_);
}

void ReadChannel::end(const Fault& why) {
  if (verdict_) return;
  stop();
  failure_ = why;
  judge();
}

}  // namespace shardwire::transport::libfabric
