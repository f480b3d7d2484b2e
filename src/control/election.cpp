// SPDX-License-Identifier: Apache-2.0
#include "control/election.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace shardwire {

namespace {

bool majority(const std::vector<Voter>& of, const std::set<Voter>& those) {
  const auto count = std::ranges::count_if(of, [&](const Voter& voter) { return those.contains(voter); });
  return 2 * static_cast<std::size_t>(count) > of.size();
}

}  // namespace

bool Electorate::decide(const std::set<Voter>& those) const {
  if (!before.empty()) return majority(before, those) && majority(voters, those);
  if (voters.size() == 2) return those.contains(voters[0]) || those.contains(voters[1]);
  return majority(voters, those);
}

bool Promise::give(std::uint64_t number, const Voter& candidate) {
  if (number < number_ || (number == number_ && candidate_ != candidate)) return false;
  number_ = number;
  candidate_ = candidate;
  return true;
}

void Promise::heard_of(std::uint64_t number) {
  if (number < number_) return;
  number_ = number;
  candidate_.reset();
}

bool Candidacy::take(const Vote& vote) {
  const bool raises = vote.number > number_ && !votes_.empty();
  number_ = std::max(number_, vote.number);
  votes_[vote.from] = vote;
  return raises;
}

std::vector<Voter> Candidacy::voters(bool of_this_number) const {
  std::vector<Voter> voters;
  for (const auto& [voter, vote] : votes_) {
    if ((vote.number == number_) == of_this_number) voters.push_back(voter);
  }
  return voters;
}

std::optional<Electorate> Candidacy::won() const {
  const Electorate* newest = nullptr;
  for (const auto& [voter, vote] : votes_) {
    if (newest == nullptr || vote.newest.is_newer_than(*newest)) newest = &vote.newest;
  }
  const std::vector<Voter> voters = supporters();
  if (newest == nullptr || !newest->decide({voters.begin(), voters.end()})) return std::nullopt;
  return *newest;
}

ServedElectorate::ServedElectorate(const Voter& self)
    : self_(self), now_{{1, self.member}, 1, {self}, {}}, knowing_{self} {
}

ServedElectorate::ServedElectorate(const Voter& self, std::uint64_t number, const Electorate& earlier)
    : self_(self), now_(earlier), knowing_{self} {
  now_.term = {number, self.member};
  now_.version = 1;
}

bool ServedElectorate::set_present(std::vector<Voter> present) {
  present_ = std::move(present);
  return step();
}

bool ServedElectorate::acknowledged(const Voter& voter, std::uint64_t version) {
  if (version != now_.version) return false;
  knowing_.insert(voter);
  if (!settle()) return false;
  step();
  return true;
}

// A step that is not settled stays until it is. Voters that cannot decide do not change the electorate.
bool ServedElectorate::step() {
  const std::set<Voter> here_now = here();
  if (!now_.before.empty() || !now_.decide(here_now)) return false;
  if (here_now == std::set<Voter>(now_.voters.begin(), now_.voters.end())) return false;
  std::vector<Voter> next{self_};
  next.insert(next.end(), present_.begin(), present_.end());
  const bool outlives_the_other = now_.voters.size() == 2 && next.size() == 1;  // nobody is left to be asked
  now_.before = std::exchange(now_.voters, std::move(next));
  if (outlives_the_other) now_.before.clear();
  ++now_.version;
  knowing_ = {self_};
  settle();
  return true;
}

bool ServedElectorate::settle() {
  if (now_.before.empty() || !now_.decide(knowing_)) return false;
  now_.before.clear();
  ++now_.version;
  knowing_ = {self_};
  return true;
}

bool ServedElectorate::has_quorum() const {
  return now_.decide(here());
}

std::set<Voter> ServedElectorate::here() const {
  std::set<Voter> here(present_.begin(), present_.end());
  here.insert(self_);
  return here;
}

}  // namespace shardwire
