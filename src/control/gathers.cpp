// SPDX-License-Identifier: Apache-2.0
#include "control/gathers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "support/list_of.hpp"
#include "support/ranks_of.hpp"

namespace shardwire {

namespace {

// How long a timed-out gather waits for the names of missing members.
constexpr std::chrono::seconds names_wait(1);

}  // namespace

std::uint64_t Gathers::start(const std::string& name, const Bytes& value, Kind kind, Duration timeout, Done done) {
  Gather gather{name, next_request_++, std::move(done), std::make_unique<Timer>(clock_)};
  gather.timer->start(timeout, [this, request = gather.request] { time_out(request); });
  const wire::Gather message{.request = gather.request,
                             .name = name,
                             .value = value,
                             .while_waiting = kind == Kind::while_waiting || kind == Kind::meeting,
                             .survivors = kind == Kind::survivors,
                             .meeting = kind == Kind::meeting};
  gathers_.push_back(std::move(gather));
  try {
    send_(message);
  } catch (const Error& error) {
    receive(wire::Failure{message.request, error.code(), error.what()});
  }
  return message.request;
}

void Gathers::quit(std::uint64_t request) {
  const auto found = find(request);
  if (found != gathers_.end() && !found->quitting) time_out(request);
}

// Only the rendezvous knows the missing members. If it does not answer either, the gather ends without names.
void Gathers::time_out(std::uint64_t request) {
  const auto found = find(request);
  if (found == gathers_.end()) return;
  if (found->quitting) {
    const std::string why =
        fmt::format("members did not come to '{}', and member 0 does not answer which", found->name);
    const Done done = std::exchange(found->done, nullptr);
    return done({}, std::make_exception_ptr(Error(ErrorCode::timed_out, why, std::vector<Rank>{Rank{0}})));
  }
  found->quitting = true;
  found->timer->start(names_wait, [this, request] { time_out(request); });
  send_(wire::GatherQuit{found->name});
}

void Gathers::receive(const wire::Gathered& gathered) {
  if (gathered.values.size() == static_cast<std::size_t>(members_))
    return answer(gathered.name, gathered.values, nullptr);
  const std::string why = fmt::format("member 0 answered '{}' with {} values in a job of {} members", gathered.name,
                                      gathered.values.size(), members_);
  answer(gathered.name, {},
         std::make_exception_ptr(Error(ErrorCode::transport_failed, why, std::vector<Rank>{Rank{0}})));
}

void Gathers::receive(const wire::GatherAbsent& absent) {
  const bool one = absent.members.size() == 1;
  const auto names = fmt::format("member{} {}", one ? "" : "s", support::list_of(absent.members));
  const std::string why = absent.lost
                              ? fmt::format("{} {} lost before coming to '{}'", names, one ? "is" : "are", absent.name)
                              : fmt::format("{} did not come to '{}'", names, absent.name);
  const auto code = absent.lost ? ErrorCode::peer_lost : ErrorCode::timed_out;
  answer(absent.name, {}, std::make_exception_ptr(Error(code, why, support::ranks_of(absent.members))));
}

bool Gathers::receive(const wire::Failure& failure) {
  const auto found = find(failure.request);
  if (found == gathers_.end()) return false;
  end(found, {}, std::make_exception_ptr(Error(failure.code, failure.message)));
  return true;
}

std::vector<Gathers::Gather>::iterator Gathers::find(std::uint64_t request) {
  return std::find_if(gathers_.begin(), gathers_.end(), [&](const Gather& one) { return one.request == request; });
}

void Gathers::end(std::vector<Gather>::iterator gather, const std::vector<Bytes>& gathered,
                  const std::exception_ptr& error) {
  const Gather ended = std::move(*gather);
  gathers_.erase(gather);
  if (ended.done) ended.done(gathered, error);
}

void Gathers::answer(const std::string& name, const std::vector<Bytes>& gathered, const std::exception_ptr& error) {
  const auto found = std::ranges::find(gathers_, name, &Gather::name);
  if (found != gathers_.end()) end(found, gathered, error);
}

void Gathers::end_all(const Error& error) {
  while (!gathers_.empty()) end(gathers_.begin(), {}, std::make_exception_ptr(error));
}

}  // namespace shardwire
