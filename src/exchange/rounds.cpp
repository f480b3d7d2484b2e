// SPDX-License-Identifier: Apache-2.0
#include "exchange/rounds.hpp"

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "exchange/rounds_task.hpp"
#include "memory/device.hpp"

namespace shardwire {

move::CollectiveJob collective_job(std::span<const wire::ExchangeNote> notes, const GroupChoice& group, int member,
                                   ByteCount staging_bytes, std::span<const move::CollectivePiece> incoming,
                                   const HeldPiece& held) {
  move::CollectiveJob job;
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

ExchangeRounds::ExchangeRounds(const transport::CollectiveTransport& collective, const transport::GroupSetup& setup)
    : place_{collective.memory, setup.device}, collective_(collective.open(setup)) {
}

transport::Memory ExchangeRounds::staging(ByteCount bytes) {
  if (place_.kind == MemoryKind::host) {
    staging_.resize(static_cast<std::size_t>(bytes));
    return transport::host_memory(staging_);
  }
  // Reused between runs: freeing it waits for all pending work of the device.
  if (bytes > 0 && (!device_staging_ || device_staging_->bytes() < bytes)) {
    const memory::FoundRuntime devices = memory::device_runtime();
    if (!devices.runtime) throw Error(ErrorCode::unsupported, devices.why_not);
    device_staging_.reset();
    device_staging_ = devices.runtime->allocate(place_.device, bytes);
  }
  return {bytes > 0 ? device_staging_->address() : nullptr, bytes, place_};
}

ExchangeRounds::Totals ExchangeRounds::run(move::CollectiveJob job, const Step& step, const RoundsContext& context) {
  try {
    return run_all(std::move(job), step, context);
  } catch (...) {
    abort();  // members that wait for this one in a round then ask for the reason
    throw;
  }
}

ExchangeRounds::Totals ExchangeRounds::run_all(move::CollectiveJob job, const Step& step,
                                               const RoundsContext& context) {
  const Clock::Time began = context.loop->now();
  // Plans, and allocates staging, on this thread: both may take long.
  move::CollectiveMove rounds(std::move(job), *collective_, [&](ByteCount bytes) { return staging(bytes); });
  RoundsTask::End stopped;
  std::exception_ptr failure;
  try {
    auto ended = begin_on<RoundsTask::End>(*context.loop, [&](const Answer<RoundsTask::End>& answer) {
      context.start(std::make_unique<RoundsTask>(context, rounds, step, answer));
    });
    // An interrupted member leaves by the notice that ends the rounds of all members.
    stopped = ended.take(context.interruption,
                         [&] { step.give_up(Error(ErrorCode::cancelled, "the caller has interrupted the exchange")); });
  } catch (const LoopEnded& error) {
    stopped.emplace(error);
  } catch (...) {
    failure = std::current_exception();
  }
  if (!rounds.over()) end_alone(rounds);
  if (stopped && collective_->is_stuck()) {
    throw Error(stopped->code(),
                fmt::format("{}; the rounds did not end in time, so they may still "
                            "write to the destination",
                            stopped->what()),
                stopped->ranks());
  }
  if (failure) std::rethrow_exception(failure);
  if (stopped) throw RoundsFailed(*stopped);
  if (const auto fault = rounds.fault()) {
    throw RoundsFailed(Error(fault->code, "the rounds have failed: " + fault->message),
                       rounds.failed_here() ? RoundsFailed::Cause::own : RoundsFailed::Cause::others);
  }
  return {.rounds = rounds.rounds(),
          .bytes = rounds.received_bytes(),
          .seconds = seconds_of(context.loop->now() - began),
          .staging_bytes = rounds.staging_bytes()};
}

// The session has ended, and its copies with it, but the group may still be writing for a posted round.
void ExchangeRounds::end_alone(move::CollectiveMove& rounds) {
  rounds.abort();
  rounds.copies_ended();
  while (!rounds.over()) {
    if (!rounds.progress()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void ExchangeRounds::abort() {
  collective_->abort();
}

}  // namespace shardwire
