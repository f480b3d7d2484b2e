// SPDX-License-Identifier: Apache-2.0
#include "serve/leases.hpp"

#include <fmt/core.h>

#include <set>
#include <utility>

#include "serve/refusal.hpp"

namespace shardwire {

namespace {

// Long enough for the loop to look at its sockets before the timer is due.
constexpr auto one_iteration = std::chrono::milliseconds(1);

}  // namespace

Leases::~Leases() {
  for (const auto& [publication, use] : uses_) {
    if (use.retired) use.retired({});
  }
}

Leases::Use& Leases::use_of(const std::shared_ptr<Publication>& publication) {
  Use& use = uses_[publication.get()];
  use.publication = publication;
  return use;
}

std::uint64_t Leases::grant(const std::shared_ptr<Publication>& publication, Lease lease) {
  const std::uint64_t number = next_lease_++;
  Use& use = use_of(publication);
  use.leases.emplace(number, std::move(lease));
  by_lease_.emplace(number, &use);
  return number;
}

Leases::Held Leases::held(std::uint64_t number, std::uint64_t reader) const {
  const auto found = by_lease_.find(number);
  if (found == by_lease_.end()) refuse_request(fmt::format("there is no lease {}", number));
  const Use& use = *found->second;
  const Lease& lease = use.leases.at(number);
  if (lease.reader != reader) refuse_request(fmt::format("lease {} is another reader's", number));
  if (lease.revoked) throw withdrawn_while_read(use.publication->name);
  return {use.publication, &lease};
}

bool Leases::holds(std::uint64_t reader, std::uint64_t number) const {
  const auto found = by_lease_.find(number);
  return found != by_lease_.end() && found->second->leases.at(number).reader == reader;
}

bool Leases::release(std::uint64_t number) {
  const auto found = by_lease_.extract(number);
  if (found.empty()) return false;
  Use& use = *found.mapped();
  const bool intact = !use.leases.at(number).revoked;
  use.leases.erase(number);
  look_at(use.publication.get());
  return intact;
}

void Leases::release_all(std::uint64_t reader) {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, use] : by_lease_) {
    if (use->leases.at(number).reader == reader) numbers.push_back(number);
  }
  for (const std::uint64_t number : numbers) release(number);
}

void Leases::begin_read(const std::shared_ptr<Publication>& publication) {
  ++use_of(publication).reads;
}

void Leases::end_read(const std::shared_ptr<Publication>& publication) {
  --uses_.at(publication.get()).reads;
  look_at(publication.get());
}

std::size_t Leases::reads() const {
  std::size_t reads = 0;
  for (const auto& [publication, use] : uses_) reads += static_cast<std::size_t>(use.reads);
  return reads;
}

void Leases::retire(const std::shared_ptr<Publication>& publication, Duration timeout, Retired retired) {
  Use& use = use_of(publication);
  use.retired = std::move(retired);
  Timer& timer = use.timer.emplace(clock_);
  auto expired = [this, publication] { expire(publication.get()); };
  // The socket may still hold a release of a lease, which readers send without awaiting an answer.
  timer.start(timeout, [&timer, expired = std::move(expired)] { timer.start(one_iteration, expired); });
  look_at(publication.get());
}

void Leases::end_timeout(const Publication& publication) {
  const auto found = uses_.find(&publication);
  if (found != uses_.end() && found->second.retired) expire(&publication);
}

// Without it, readers that hang could keep the memory in use indefinitely.
void Leases::expire(const Publication* publication) {
  Use& use = uses_.at(publication);
  use.expired = true;
  for (auto& [number, lease] : use.leases) lease.revoked = true;
  abort_reads_(*publication);
  look_at(publication);
}

void Leases::look_at(const Publication* publication) {
  const auto found = uses_.find(publication);
  if (found == uses_.end() || found->second.reads > 0) return;
  Use& use = found->second;
  const auto keep = use.publication;
  std::set<int> members;
  for (const auto& [number, lease] : use.leases) members.insert(lease.member);
  Retired retired;
  if (use.retired && (use.leases.empty() || use.expired)) {
    retired = std::exchange(use.retired, nullptr);
    use.timer.reset();
    for (const auto& adopted : keep->adopted) adopted->withdraw();
  }
  if (use.leases.empty() && !use.retired) uses_.erase(found);
  if (retired) retired({members.begin(), members.end()});
}

}  // namespace shardwire
