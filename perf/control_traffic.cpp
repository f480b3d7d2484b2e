// SPDX-License-Identifier: Apache-2.0
// Outline: the job; what all ranks pay; one scenario.
#include "perf/control_traffic.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>

#include "control/directory.hpp"
#include "control/rendezvous.hpp"
#include "runtime/clock.hpp"
#include "wire/messages.hpp"

namespace shardwire::perf {
namespace {

std::uint64_t framed_bytes(const wire::Message& message) {
  return sizeof(std::uint64_t) + wire::encode(message).size();
}

// Bytes between members.
struct Traffic {
  explicit Traffic(std::size_t members) : total(members) {}
  void carry(int from, int to, std::uint64_t bytes) {
    total[static_cast<std::size_t>(from)] += bytes;
    total[static_cast<std::size_t>(to)] += bytes;
  }
  std::vector<std::uint64_t> total;
};

// --- the job ---

class Job {
 public:
  Job(const JobLayout& from, int readers) : from_(from), readers_(readers), members_(std::max(from.ranks, readers)) {
    section_of_.assign(static_cast<std::size_t>(members_), -1);
    for (std::size_t s = 0; s < from.sections.size(); ++s) {
      encoded_.push_back(wire::encode_manifest(*from.sections[s].manifest));
      digests_.push_back(wire::digest_of(encoded_.back()));
      for (const Rank rank : from.sections[s].ranks) {
        section_of_[static_cast<std::size_t>(to_int(rank))] = static_cast<int>(s);
        publishers_.push_back(to_int(rank));
      }
    }
    std::sort(publishers_.begin(), publishers_.end());
  }

  [[nodiscard]] int members() const { return members_; }
  [[nodiscard]] int readers() const { return readers_; }
  [[nodiscard]] const std::vector<int>& publishers() const { return publishers_; }
  [[nodiscard]] const std::vector<Bytes>& encoded() const { return encoded_; }
  [[nodiscard]] const Bytes& values() const { return values_; }

  [[nodiscard]] wire::Hello hello_of(int rank) const {
    wire::Hello hello;
    hello.rank = rank;
    hello.world_size = members_;
    hello.incarnation = 0x9e3779b97f4a7c15ULL * static_cast<std::uint64_t>(rank + 1);
    hello.host = fmt::format("01234567-89ab-cdef-0123-{:012x} ipc:[4026531839] pid:[4026531836] 1000", rank / 8);
    return hello;
  }
  [[nodiscard]] wire::MemberRecord record_of(int rank) const {
    const wire::Hello hello = hello_of(rank);
    return {.rank = rank,
            .incarnation = hello.incarnation,
            .host = hello.host,
            .address = fmt::format("10.{}.{}.{}", rank >> 16, (rank >> 8) & 255, rank & 255),
            .port = 40000};
  }
  [[nodiscard]] wire::PublicationRecord publication_of(int rank) const {
    return {.member = rank,
            .layout_rank = rank,
            .step = 1000,
            .generation = 1,
            .live = true,
            .manifest = digests_[static_cast<std::size_t>(section_of_[static_cast<std::size_t>(rank)])],
            .values = values_digest_};
  }
  /// Whom a reader asks for a manifest that it does not publish itself: holders in turn by the number of the reader.
  [[nodiscard]] std::vector<std::pair<std::size_t, int>> asks(int reader) const {
    std::vector<std::pair<std::size_t, int>> list;
    for (std::size_t s = 0; s < from_.sections.size(); ++s) {
      const std::vector<Rank>& ranks = from_.sections[s].ranks;
      if (section_of_[static_cast<std::size_t>(reader)] == static_cast<int>(s) || ranks.empty()) continue;
      list.emplace_back(s, to_int(ranks[static_cast<std::size_t>(reader) % ranks.size()]));
    }
    return list;
  }
  /// Whom a reader asks for the values.
  [[nodiscard]] int values_holder(int reader) const {
    return publishers_[static_cast<std::size_t>(reader) % publishers_.size()];
  }

 private:
  const JobLayout& from_;
  int readers_;
  int members_;
  std::vector<int> section_of_;
  std::vector<int> publishers_;
  std::vector<Bytes> encoded_;
  std::vector<wire::Digest> digests_;
  Bytes values_ = wire::encode_values({{{"", "step"}, std::int64_t{1000}}});
  wire::Digest values_digest_ = wire::digest_of(values_);
};

// --- what all ranks pay, in any scenario ---

void shake_hands(Traffic& traffic, const Job& job, int from, int to) {
  const std::uint64_t proof = framed_bytes(wire::Proof{});
  traffic.carry(from, to, framed_bytes(job.hello_of(from)) + proof);
  traffic.carry(to, from, framed_bytes(job.hello_of(to)) + proof);
}

/// Each reader takes every manifest but its own from a holder, and the values from one, as a restore does.
void fetch_descriptions(Traffic& traffic, const Job& job) {
  const std::uint64_t ask = framed_bytes(wire::ManifestRequest{});
  std::vector<std::uint64_t> replies;
  for (const Bytes& encoded : job.encoded()) replies.push_back(framed_bytes(wire::ManifestReply{{}, encoded}));
  const std::uint64_t ask_values = framed_bytes(wire::ValuesRequest{});
  const std::uint64_t values = framed_bytes(wire::ValuesReply{{}, job.values()});
  for (int reader = 0; reader < job.readers(); ++reader) {
    for (const auto& [section, holder] : job.asks(reader)) {
      shake_hands(traffic, job, reader, holder);
      traffic.carry(reader, holder, ask);
      traffic.carry(holder, reader, replies[section]);
    }
    const int holder = job.values_holder(reader);
    shake_hands(traffic, job, reader, holder);
    traffic.carry(reader, holder, ask_values);
    traffic.carry(holder, reader, values);
  }
}

// --- one scenario ---

struct Run {
  explicit Run(const Job& of)
      : job(of), rendezvous(of.members(), 1, [this](auto to, const wire::Message& message) { sent(to, message); }) {}

  // Client and member have one number here.
  void sent(std::span<const Rendezvous::ClientId> to, const wire::Message& message) {
    const std::uint64_t bytes = framed_bytes(message);
    const bool addresses = std::holds_alternative<wire::Addresses>(message);
    for (const auto client : to) (addresses ? address_bytes : from_host)[client] += bytes;
    if (const auto* roster = std::get_if<wire::Roster>(&message)) {
      rosters += to.empty() ? 0 : 1;
      if (std::find(to.begin(), to.end(), observer) != to.end()) directory.apply(*roster);
    }
  }
  void send(int rank, const wire::Message& message) {
    const bool lookup = std::holds_alternative<wire::Lookup>(message);
    (lookup ? address_bytes : to_host)[static_cast<std::size_t>(rank)] += framed_bytes(message);
    rendezvous.take(static_cast<Rendezvous::ClientId>(rank), job.hello_of(rank), message, now);
    rendezvous.flush(now);
  }
  void pass_to(Clock::Time time) {
    for (auto due = rendezvous.flush(now); due && *due <= time; due = rendezvous.flush(now)) now = *due;
    now = time;
  }

  void play(const ControlScenario& scenario) {
    for (int rank = 0; rank < job.members(); ++rank) send(rank, wire::Join{job.record_of(rank)});
    const auto watch = [&] {
      for (int rank = 0; rank < job.readers(); ++rank) send(rank, wire::Watch{"state"});
    };
    if (scenario.watch_first) watch();
    std::vector<int> order = job.publishers();
    if (scenario.random_order) std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
    const auto began = now;
    for (std::size_t i = 0; i < order.size(); ++i) {
      pass_to(began +
              std::chrono::nanoseconds(scenario.publishing) * static_cast<int>(i) / static_cast<int>(order.size()));
      send(order[i], wire::Publish{"state", job.publication_of(order[i])});
    }
    if (!scenario.watch_first) watch();
    pass_to(now + std::chrono::seconds(2) + scenario.publishing / 16);
    for (int rank = 0; rank < job.readers(); ++rank) {
      if (address_bytes[static_cast<std::size_t>(rank)] > 0) continue;  // they came with the roster
      wire::Lookup lookup;
      for (const auto& [section, holder] : job.asks(rank)) lookup.members.push_back(holder);
      lookup.members.push_back(job.values_holder(rank));
      std::sort(lookup.members.begin(), lookup.members.end());
      lookup.members.erase(std::unique(lookup.members.begin(), lookup.members.end()), lookup.members.end());
      send(rank, lookup);
    }
    check();
  }

  /// The roster of one reader has to be what was published.
  void check() const {
    const auto records = directory.publications("state");
    bool right = records.size() == job.publishers().size();
    for (std::size_t i = 0; right && i < records.size(); ++i) {
      wire::PublicationRecord expected = job.publication_of(job.publishers()[i]);
      expected.epoch = 1;
      right = records[i] == expected;
    }
    if (!right) throw std::runtime_error("a reader's roster is not what was published");
  }

  const Job& job;
  Rendezvous::ClientId observer = static_cast<Rendezvous::ClientId>(job.readers()) / 2;
  Clock::Time now{std::chrono::hours(1)};
  Directory directory{job.members()};
  std::uint64_t rosters = 0;
  std::vector<std::uint64_t> from_host = std::vector<std::uint64_t>(static_cast<std::size_t>(job.members()));
  std::vector<std::uint64_t> to_host = from_host;
  std::vector<std::uint64_t> address_bytes = from_host;
  Rendezvous rendezvous;
};

}  // namespace

ControlTraffic control_traffic(const JobLayout& from, int readers, const ControlScenario& scenario) {
  const Job job(from, readers);
  Run run(job);
  run.play(scenario);
  Traffic traffic(static_cast<std::size_t>(job.members()));
  fetch_descriptions(traffic, job);
  const std::uint64_t proof = framed_bytes(wire::Proof{});
  ControlTraffic result;
  for (std::size_t rank = 0; rank < traffic.total.size(); ++rank) {
    const std::uint64_t greeting = framed_bytes(job.hello_of(static_cast<int>(rank))) + proof;
    // Messages of member 0 to itself cross no wire; its part as the rendezvous has a target of its own.
    const std::uint64_t received = rank == 0 ? 0 : run.from_host[rank] + greeting;
    const std::uint64_t told = rank == 0 ? 0 : run.to_host[rank] + greeting;
    if (rank != 0) result.from_host.push_back(received);
    result.total.push_back(traffic.total[rank] + received + told);
  }
  result.address_bytes.assign(run.address_bytes.begin(), run.address_bytes.begin() + readers);
  for (const Bytes& encoded : job.encoded()) result.manifests.push_back(encoded.size());
  result.rosters = run.rosters;
  return result;
}

}  // namespace shardwire::perf
