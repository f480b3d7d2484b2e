// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace shardwire {

/// A process that may serve the rendezvous, and that has a say in who does. One that takes over a member number is another voter.
struct Voter {
  std::int32_t member = 0;
  std::uint64_t incarnation = 0;

  auto operator<=>(const Voter&) const = default;
};

/// One time of service. Later terms are greater. Of one number there is one term, unless one of two voters has taken over
/// alone while the other one went on: then the member decides.
struct Term {
  std::uint64_t number = 0;
  std::int32_t member = 0;  ///< who serves

  auto operator<=>(const Term&) const = default;
};

/// The voters that decide which member serves. The serving member changes the list in steps. A step is settled once a majority
/// of the voters before it and a majority of those after it know of it. Until then decisions take both majorities.
struct Electorate {
  Term term{};                ///< of who made it
  std::uint64_t version = 0;  ///< within the term
  std::vector<Voter> voters;  ///< in the order in which they are asked to serve
  std::vector<Voter> before;  ///< those of the step before; empty: settled

  [[nodiscard]] bool is_newer_than(const Electorate& other) const {
    return term != other.term ? term > other.term : version > other.version;
  }
  /// Whether these voters decide. Of two settled voters one suffices: the other one could not be outvoted.
  [[nodiscard]] bool decide(const std::set<Voter>& those) const;
};

/// A process gives one candidate its vote in each number, and keeps this promise.
/// Threads: loop thread only, as all of these.
class Promise {
 public:
  /// False: another candidate has the vote of this number, or of a later one.
  bool give(std::uint64_t number, const Voter& candidate);
  /// A term of this number exists: no vote of it, or of an earlier one, is given any more.
  void heard_of(std::uint64_t number);
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// The least number in which this candidate may have the vote. Who votes for the same one again stays at its number: later
  /// ones would only delay whoever serves meanwhile.
  [[nodiscard]] std::uint64_t next(const Voter& candidate) const {
    return candidate_ == candidate ? number_ : number_ + 1;
  }

 private:
  std::uint64_t number_ = 0;
  std::optional<Voter> candidate_;  // empty: nobody has the vote
};

/// A vote. Its voter has promised it.
struct Vote {
  std::uint64_t number = 0;
  Voter from;
  Electorate newest;  ///< that the voter knows
};

/// Votes for this process.
class Candidacy {
 public:
  /// Votes of the greatest number count. True: all who have voted in a lesser one have to vote again, in number().
  bool take(const Vote& vote);
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// Voters of number(), and voters of lesser numbers only.
  [[nodiscard]] std::vector<Voter> supporters() const { return voters(true); }
  [[nodiscard]] std::vector<Voter> outdated() const { return voters(false); }
  /// The electorate that the winner goes on with; empty: the votes do not decide.
  [[nodiscard]] std::optional<Electorate> won() const;
  void forget(const Voter& voter) { votes_.erase(voter); }

 private:
  [[nodiscard]] std::vector<Voter> voters(bool of_this_number) const;

  std::uint64_t number_ = 0;
  std::map<Voter, Vote> votes_;
};

/// The electorate of a process that serves.
class ServedElectorate {
 public:
  /// The first term of a job.
  explicit ServedElectorate(const Voter& self);
  /// Goes on with the electorate of an earlier term, which has decided for this process.
  ServedElectorate(const Voter& self, std::uint64_t number, const Electorate& earlier);

  /// These voters are connected, besides this process; in the order in which they are to be asked to serve. True: there is
  /// a new electorate, which everybody has to learn.
  bool set_present(std::vector<Voter> present);
  /// A voter knows this version. True: as above.
  bool acknowledged(const Voter& voter, std::uint64_t version);
  [[nodiscard]] const Electorate& now() const { return now_; }
  /// The voters that are present decide. Else there may be another member 0, and this one must not serve.
  [[nodiscard]] bool has_quorum() const;

 private:
  bool step();
  bool settle();
  [[nodiscard]] std::set<Voter> here() const;

  Voter self_;
  Electorate now_;
  std::vector<Voter> present_;
  std::set<Voter> knowing_;  // now_
};

}  // namespace shardwire
