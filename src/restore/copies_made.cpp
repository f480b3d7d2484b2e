// SPDX-License-Identifier: Apache-2.0
#include "restore/copies_made.hpp"

#include <fmt/core.h>

#include <span>
#include <utility>

#include "support/list_of.hpp"
#include "support/ranks_of.hpp"

namespace shardwire::restore {

CopiesMade::CopiesMade(const Context& context, Request request, Done done)
    : Question(context, name_for(request.name)),
      request_(std::move(request)),
      done_(std::move(done)),
      timer_(context.clock) {
}

// Names of publications have a limited length.
std::string CopiesMade::name_for(const std::string& name) {
  return "copied: " + wire::to_hex(wire::digest_of(std::as_bytes(std::span(name))));
}

void CopiesMade::start() {
  if (request_.members.empty()) return end(nullptr);
  timer_.start(request_.timeout, [this] {
    const std::vector<int> silent = awaited();
    end(std::make_exception_ptr(
        Error(ErrorCode::timed_out, fmt::format("members {} are not done with their copies", support::list_of(silent)),
              support::ranks_of(silent))));
  });
  directory_changed();
}

std::vector<int> CopiesMade::awaited() const {
  std::vector<int> members;
  for (const int member : request_.members) {
    if (context_.directory.presence(member) != wire::Presence::there) continue;
    const auto said = context_.directory.publication(name_for(request_.name), member);
    if (!said || said->step < request_.step) members.push_back(member);
  }
  return members;
}

void CopiesMade::look() {
  if (awaited().empty()) return end(nullptr);
  context_.membership.require_rendezvous("what other members have copied");
}

void CopiesMade::end(const std::exception_ptr& error) {
  if (!done_) return;
  timer_.stop();
  context_.finished(*this);
  std::exchange(done_, nullptr)(error);
}

}  // namespace shardwire::restore
