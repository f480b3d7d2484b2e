// SPDX-License-Identifier: Apache-2.0
#include "restore/record_check.hpp"

#include <algorithm>
#include <variant>

namespace shardwire::restore {

RecordCheck::RecordCheck(const Context& context, std::string name, Duration patience, Callbacks::Failed failed)
    : context_(context),
      name_(std::move(name)),
      patience_(patience),
      callbacks_(std::move(failed)),
      timer_(context.clock),
      next_request_(context.first_request()) {
}

RecordCheck::~RecordCheck() {
  stop();
}

void RecordCheck::stop() {
  callbacks_.restart();
  timer_.stop();
  done_ = nullptr;
  for (const auto& [link, watcher] : std::exchange(watched_, {})) link->unwatch(watcher);
}

void RecordCheck::ask(const Records& records, Done done) {
  stop();
  done_ = std::move(done);
  stale_.clear();
  awaited_ = 1;  // this call
  const std::size_t count = std::min(records.size(), max_asked);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& record = records[(static_cast<std::size_t>(context_.member) + i) % records.size()];
    if (record.member != context_.member) {
      ask_one(record);
    } else if (is_own_gone(record)) {
      stale_.push_back(record);
    }
  }
  timer_.start(patience_, callbacks_.wrap([this] {
    awaited_ = 1;
    answered();
  }));
  answered();
}

bool RecordCheck::is_own_gone(const wire::PublicationRecord& record) const {
  const auto own = context_.own_publication(name_);
  return own == nullptr || own->generation != record.generation;
}

void RecordCheck::ask_one(const wire::PublicationRecord& record) {
  std::shared_ptr<SourceLink> link;
  try {
    link = context_.link(record);
  } catch (const Error&) {  // unreachable
    return;
  }
  ++awaited_;
  const auto watcher = link->watch(callbacks_.wrap([this](const Error&) { answered(); }));  // then no answer follows
  watched_.emplace_back(link, watcher);
  const std::uint64_t number = next_request_++;
  link->request(number, wire::Confirm{number, name_, record.generation},
                callbacks_.wrap([this, record, watcher, link = link.get()](wire::Message& message) {
                  link->unwatch(watcher);
                  const auto* confirmed = std::get_if<wire::Released>(&message);
                  if (confirmed != nullptr && !confirmed->intact) stale_.push_back(record);
                  answered();
                }));
}

void RecordCheck::answered() {
  if (--awaited_ != 0 || !done_) return;
  const Done done = std::move(done_);
  const Records stale = std::move(stale_);
  stop();
  done(stale);
}

}  // namespace shardwire::restore
