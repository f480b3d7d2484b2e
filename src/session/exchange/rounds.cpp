// SPDX-License-Identifier: Apache-2.0
#include "session/exchange/rounds.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "memory/device.hpp"
#include "memory/device_copies.hpp"

namespace shardwire {

namespace {

// How soon a restore that has failed, or the deadline, is seen while nothing else happens.
constexpr int look_around_ms = 10;
// Pieces and staging lie on one device, so nothing takes this way.
constexpr ByteCount pinned_bytes = 1u << 20;

}  // namespace

move::GroupedJob grouped_job(std::span<const wire::ExchangeNote> notes, const GroupChoice& group, int member,
                             ByteCount staging_bytes, std::span<const move::GroupedPiece> incoming,
                             const HeldPiece& held) {
  move::GroupedJob job;
  job.limits.members = static_cast<int>(group.members.size());
  job.limits.staging_bytes = staging_bytes;
  job.member = group.rank_of(member);
  std::map<std::pair<int, int>, std::vector<move::StreamPiece>> streams;
  for (std::size_t reader = 0; reader < notes.size(); ++reader) {
    const int to = group.rank_of(static_cast<int>(reader));
    for (std::size_t i = 0; i < notes[reader].requests.size(); ++i) {
      const wire::ExchangeRequest& request = notes[reader].requests[i];
      const int from = request.source < notes.size() ? group.rank_of(static_cast<int>(request.source)) : -1;
      if (from < 0 || to < 0 || from == to) {
        throw Error(ErrorCode::transport_failed,
                    fmt::format("member {} asks member {} of {} for a piece", reader, request.source, notes.size()));
      }
      streams[{from, to}].push_back({request.bytes, request.run_bytes, request.item_bytes});
      if (from == job.member) job.outgoing[to].push_back(held(request));
      if (to == job.member) job.incoming[from].push_back(incoming[i]);
    }
  }
  for (auto& [pair, pieces] : streams) job.streams.push_back({pair.first, pair.second, std::move(pieces)});
  return job;
}

namespace {

std::unique_ptr<memory::CopyQueue> copies_for(const transport::MemoryPlace& place, memory::Copier& copier,
                                              const std::function<void()>& wake) {
  if (place.kind == MemoryKind::host) return std::make_unique<memory::HostCopies>(copier);
  return std::make_unique<memory::DeviceCopies>(copier, wake, pinned_bytes);
}

}  // namespace

ExchangeRounds::ExchangeRounds(const transport::CollectiveTransport& collective, const transport::GroupSetup& setup)
    : place_{collective.memory, setup.device},
      copied_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      copier_(1, [this] { wake(); }),
      copies_(copies_for(place_, copier_, [this] { wake(); })),
      collective_(collective.open(setup)) {
  if (!copied_) throw Error(ErrorCode::out_of_resources, "cannot create an event descriptor (eventfd)");
}

void ExchangeRounds::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(copied_.get(), &one, sizeof one);
}

transport::Memory ExchangeRounds::staging(ByteCount bytes) {
  if (place_.kind == MemoryKind::host) {
    staging_.resize(static_cast<std::size_t>(bytes));
    return transport::host_memory(staging_);
  }
  // Kept from one time to the next: giving it back waits for all that the device is at.
  if (bytes > 0 && (!device_staging_ || device_staging_->bytes() < bytes)) {
    const memory::FoundRuntime devices = memory::device_runtime();
    if (!devices.runtime) throw Error(ErrorCode::unsupported, devices.why_not);
    device_staging_.reset();
    device_staging_ = devices.runtime->allocate(place_.device, bytes);
  }
  return {bytes > 0 ? device_staging_->address() : nullptr, bytes, place_};
}

ExchangeRounds::Totals ExchangeRounds::run(move::GroupedJob job, const Stopped& stopped, Clock::time_point deadline) {
  try {
    return run_all(std::move(job), stopped, deadline);
  } catch (...) {
    give_up();  // whoever waits for this member in a round comes to ask why
    throw;
  }
}

namespace {

// What is under way ends in order also when nobody can be asked any more.
std::optional<Error> answer_of(const ExchangeRounds::Stopped& stopped) {
  try {
    return stopped();
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace

ExchangeRounds::Totals ExchangeRounds::run_all(move::GroupedJob job, const Stopped& stopped,
                                               Clock::time_point deadline) {
  const Clock::time_point began = Clock::now();
  move::GroupedMove rounds(std::move(job), *collective_, *copies_, [&](ByteCount bytes) { return staging(bytes); });
  std::optional<Error> given_up;
  while (!rounds.over()) {
    if (!given_up) given_up = answer_of(stopped);
    if (!given_up && Clock::now() >= deadline) {
      given_up.emplace(ErrorCode::timed_out, "the rounds of the exchange were not over by its deadline");
    }
    if (given_up && !rounds.fault()) rounds.abort();
    if (!rounds.progress()) wait_for_news();
  }
  if (given_up && collective_->is_stuck()) {
    throw Error(given_up->code(), fmt::format("{}; the rounds have not come to an end in time, so they may still write "
                                              "to what was wanted",
                                              given_up->what()));
  }
  if (given_up) throw Error(*given_up);
  if (rounds.failed_here()) throw Error(rounds.fault()->code, "the rounds have failed: " + rounds.fault()->message);
  if (rounds.fault()) throw GroupFailed(*rounds.fault());
  return {.rounds = rounds.rounds(),
          .bytes = rounds.received_bytes(),
          .seconds = std::chrono::duration<double>(Clock::now() - began).count(),
          .staging_bytes = rounds.staging_bytes()};
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
