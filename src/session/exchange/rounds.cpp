// SPDX-License-Identifier: Apache-2.0
#include "session/exchange/rounds.hpp"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace shardwire {

namespace {

// How soon a restore that has failed, or the deadline, is seen while nothing else happens.
constexpr int look_around_ms = 10;

std::string offer_of(const transport::CollectiveTransport& one) {
  return fmt::format("{} ({})", one.name, one.domain());
}

bool offers(const wire::ExchangeNote& note, const std::string& offer) {
  return std::ranges::find(note.collectives, offer) != note.collectives.end();
}

}  // namespace

std::vector<std::string> offered_collectives() {
  std::vector<std::string> offered;
  for (const transport::CollectiveTransport& one : transport::registered_collectives()) {
    if (one.memory == MemoryKind::host && one.probe().viable) offered.push_back(offer_of(one));
  }
  return offered;
}

const transport::CollectiveTransport& agreed_collective(std::span<const wire::ExchangeNote> notes) {
  for (const transport::CollectiveTransport& one : transport::registered_collectives()) {
    if (one.memory != MemoryKind::host || !one.probe().viable) continue;
    const std::string offer = offer_of(one);
    if (std::ranges::all_of(notes, [&](const wire::ExchangeNote& note) { return offers(note, offer); })) return one;
  }
  std::vector<std::string> all;
  for (std::size_t member = 0; member < notes.size() && member < 8; ++member) {
    const auto& offered = notes[member].collectives;
    all.push_back(offered.empty() ? fmt::format("member {} offers none", member)
                                  : fmt::format("member {} offers {}", member, fmt::join(offered, " and ")));
  }
  throw Error(ErrorCode::unsupported, fmt::format("the way 'grouped' needs a collective that all members have: {}{}",
                                                  fmt::join(all, ", "), notes.size() > all.size() ? ", .." : ""));
}

move::GroupedJob grouped_job(std::span<const wire::ExchangeNote> notes, int member, ByteCount staging_bytes,
                             std::span<const move::GroupedPiece> incoming, const HeldPiece& held) {
  move::GroupedJob job;
  job.limits.members = static_cast<int>(notes.size());
  job.limits.staging_bytes = staging_bytes;
  job.member = member;
  std::map<std::pair<int, int>, std::vector<move::StreamPiece>> streams;
  for (std::size_t reader = 0; reader < notes.size(); ++reader) {
    const auto to = static_cast<int>(reader);
    for (std::size_t i = 0; i < notes[reader].requests.size(); ++i) {
      const wire::ExchangeRequest& request = notes[reader].requests[i];
      if (request.source >= notes.size() || request.source == reader) {
        throw Error(ErrorCode::transport_failed,
                    fmt::format("member {} asks member {} of {} for a piece", reader, request.source, notes.size()));
      }
      const auto from = static_cast<int>(request.source);
      streams[{from, to}].push_back({request.bytes, request.run_bytes, request.item_bytes});
      if (from == member) job.outgoing[to].push_back(held(request));
      if (to == member) job.incoming[from].push_back(incoming[i]);
    }
  }
  for (auto& [pair, pieces] : streams) job.streams.push_back({pair.first, pair.second, std::move(pieces)});
  return job;
}

ExchangeRounds::ExchangeRounds(const transport::CollectiveTransport& collective, const Bytes& group_id, int member,
                               int members)
    : copied_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      copier_(1,
              [descriptor = copied_.get()] {
                const std::uint64_t one = 1;
                [[maybe_unused]] const auto written = ::write(descriptor, &one, sizeof one);
              }),
      copies_(copier_),
      collective_(collective.open({.id = group_id, .rank = member, .size = members})) {
  if (!copied_) throw Error(ErrorCode::out_of_resources, "cannot create an event descriptor (eventfd)");
}

ExchangeRounds::~ExchangeRounds() = default;

ExchangeRounds::Totals ExchangeRounds::run(move::GroupedJob job, const std::function<bool()>& stopped,
                                           Clock::time_point deadline) {
  try {
    return run_all(std::move(job), stopped, deadline);
  } catch (...) {
    give_up();  // whoever waits for this member in a round comes to ask why
    throw;
  }
}

ExchangeRounds::Totals ExchangeRounds::run_all(move::GroupedJob job, const std::function<bool()>& stopped,
                                               Clock::time_point deadline) {
  Bytes staging;
  move::GroupedMove rounds(std::move(job), *collective_, copies_, [&](ByteCount bytes) {
    staging.resize(static_cast<std::size_t>(bytes));
    return transport::host_memory(staging);
  });
  std::optional<Error> given_up;
  while (!rounds.over()) {
    if (!given_up && stopped()) given_up.emplace(ErrorCode::cancelled, "the restore of this member has ended");
    if (!given_up && Clock::now() >= deadline) {
      given_up.emplace(ErrorCode::timed_out, "the rounds of the exchange were not over by its deadline");
    }
    if (given_up && !rounds.fault()) rounds.abort();
    if (!rounds.progress()) wait_for_news();
  }
  if (given_up) throw Error(*given_up);
  if (rounds.failed_here()) throw Error(rounds.fault()->code, "the rounds have failed: " + rounds.fault()->message);
  if (rounds.fault()) throw GroupFailed(*rounds.fault());
  return {rounds.rounds(), rounds.staging_bytes()};
}

void ExchangeRounds::give_up() {
  collective_->abort();
}

void ExchangeRounds::wait_for_news() {
  if (!collective_->arm()) return;
  std::array<pollfd, 2> both{};
  both[0] = {.fd = collective_->event_descriptor(), .events = POLLIN, .revents = 0};
  both[1] = {.fd = copied_.get(), .events = POLLIN, .revents = 0};
  ::poll(both.data(), both.size(), look_around_ms);
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(copied_.get(), &count, sizeof count);
}

}  // namespace shardwire
