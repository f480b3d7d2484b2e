// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "session/core.hpp"
#include "session/restore_run.hpp"

namespace shardwire {

namespace {

constexpr std::chrono::milliseconds retry_interval(50);

}  // namespace

// --- joining ---

void Core::join(Joined joined) {
  joined_ = std::move(joined);
  const Bootstrap& bootstrap = setup_.bootstrap;
  try {
    rendezvous_host_ = resolve(bootstrap.address);
    join_timer_ = std::make_unique<Timer>(loop_);
    retry_timer_ = std::make_unique<Timer>(loop_);
    join_timer_->start(setup_.options.join_timeout, [this] {
      if (!joined_) return;
      const auto report = std::exchange(joined_, nullptr);
      report(std::make_exception_ptr(
          Error(ErrorCode::timed_out, fmt::format("member {} could not join at {} port {}: {}", setup_.bootstrap.rank,
                                                  rendezvous_host_, setup_.bootstrap.port,
                                                  last_refusal_.empty() ? "no answer" : last_refusal_))));
    });
    if (bootstrap.rank == 0) {
      rendezvous_.emplace([this](const wire::StoreEntry& entry) { learn(entry); });
      listen({rendezvous_host_, bootstrap.port});
      announce(rendezvous_host_);
    } else {
      connect_to_rendezvous();
    }
  } catch (const Error&) {
    if (joined_) std::exchange(joined_, nullptr)(std::current_exception());
  }
}

void Core::connect_to_rendezvous() {
  Connection::Events events;
  events.ready = [this](Connection& connection) {
    const std::string& wanted = setup_.bootstrap.interface;
    const std::string host = wanted.empty() ? connection.local_host() : interface_address(wanted);
    listen({host, 0});
    announce(host);
  };
  events.message = [this](Connection&, wire::Message& message) {
    if (const auto* entry = std::get_if<wire::StoreEntry>(&message)) learn(*entry);
  };
  events.closed = [this](Connection&, const Error& reason, bool orderly) {
    if (!joined_) return rendezvous_ended(reason, orderly);
    last_refusal_ = reason.what();
    const bool not_there_yet = reason.code() == ErrorCode::peer_lost;
    if (!not_there_yet) return std::exchange(joined_, nullptr)(std::make_exception_ptr(reason));
    retry_timer_->start(retry_interval, [this] {
      if (joined_) connect_to_rendezvous();
    });
  };
  store_ = Connection::connect(loop_, {rendezvous_host_, setup_.bootstrap.port}, setup_.identity, std::move(events));
}

void Core::announce(const std::string& host) {
  watch(member_prefix);
  watch(lost_prefix);
  watch(publication_prefix);
  const wire::MemberRecord record{.rank = setup_.bootstrap.rank,
                                  .incarnation = setup_.identity.hello.incarnation,
                                  .host = setup_.identity.hello.host,
                                  .address = host,
                                  .port = listener_->address().port,
                                  .local_path = {}};
  put(member_key(record.rank), wire::encode_member(record));
}

void Core::put(const std::string& key, const Bytes& value) {
  if (rendezvous_) {
    rendezvous_->put(nullptr, key, value);
  } else if (store_) {
    store_->send(wire::StorePut{key, value});
  }
}

void Core::watch(const std::string& prefix) {
  if (rendezvous_) {
    rendezvous_->watch(nullptr, prefix);
  } else if (store_) {
    store_->send(wire::StoreWatch{prefix});
  }
}

void Core::learn(const wire::StoreEntry& entry) {
  try {
    directory_.apply(entry);
  } catch (const Error& error) {
    return log(LogLevel::warning, error.what());
  }
  const auto* own = directory_.member(setup_.bootstrap.rank);
  if (joined_ && own != nullptr && own->incarnation == setup_.identity.hello.incarnation) {
    join_timer_->stop();
    std::exchange(joined_, nullptr)(nullptr);
  }
  directory_changed();
}

void Core::directory_changed() {
  check_gathers();
  for (const auto& run : restores_) run->directory_changed();
}

void Core::rendezvous_ended(const Error& reason, bool orderly) {
  store_lost_ = Error(ErrorCode::peer_lost,
                      fmt::format("member 0, which serves the rendezvous, {}: {}", orderly ? "left" : "is lost",
                                  reason.what()),
                      std::vector<Rank>{Rank{0}});
  log(orderly ? LogLevel::debug : LogLevel::warning, store_lost_->what());
  directory_changed();
}

void Core::leave() {
  for (const auto& [key, link] : links_) {
    if (!link->broken()) link->leave();
  }
  if (store_) store_->leave();
  for (const auto& [id, connection] : accepted_) connection->leave();
  accepted_.clear();
}

// --- gather ---

void Core::gather(const std::string& name, const Bytes& value, Duration timeout,
                  std::function<void(std::vector<Bytes>, std::exception_ptr)> done) {
  Gather gather{name, std::move(done), std::make_unique<Timer>(loop_)};
  gather.timer->start(timeout, [this, name] {
    for (std::size_t i = 0; i < gathers_.size(); ++i) {
      if (gathers_[i].name != name) continue;
      std::vector<Rank> missing;
      std::vector<int> numbers;
      for (int rank = 0; rank < setup_.bootstrap.world_size; ++rank) {
        if (directory_.gathered(name).contains(rank)) continue;
        missing.push_back(Rank{rank});
        numbers.push_back(rank);
      }
      return end_gather(i, {}, std::make_exception_ptr(Error(
                                   ErrorCode::timed_out,
                                   fmt::format("members {} did not come to '{}'", fmt::join(numbers, ", "), name),
                                   std::move(missing))));
    }
  });
  gathers_.push_back(std::move(gather));
  watch(fmt::format("gather/{}/", name));
  put(gather_key(name, setup_.bootstrap.rank), value);
  check_gathers();
}

void Core::end_gather(std::size_t index, std::vector<Bytes> gathered, const std::exception_ptr& error) {
  Gather gather = std::move(gathers_[index]);
  gathers_.erase(gathers_.begin() + static_cast<std::ptrdiff_t>(index));
  gather.done(std::move(gathered), error);
  if (!error) directory_.forget_gather(gather.name);
}

void Core::check_gathers() {
  for (std::size_t i = gathers_.size(); i-- > 0;) {
    const auto& gathered = directory_.gathered(gathers_[i].name);
    if (gathered.size() == static_cast<std::size_t>(setup_.bootstrap.world_size)) {
      std::vector<Bytes> result;
      for (const auto& [rank, value] : gathered) result.push_back(value);
      end_gather(i, std::move(result), nullptr);
      continue;
    }
    for (int rank = 0; rank < setup_.bootstrap.world_size; ++rank) {
      if (gathered.contains(rank) || !directory_.departed(rank)) continue;
      end_gather(i, {},
                 std::make_exception_ptr(Error(ErrorCode::peer_lost,
                                               fmt::format("member {} is lost before it came to '{}'", rank,
                                                           gathers_[i].name),
                                               std::vector<Rank>{Rank{rank}})));
      break;
    }
  }
  if (store_lost_) {
    while (!gathers_.empty()) end_gather(gathers_.size() - 1, {}, std::make_exception_ptr(*store_lost_));
  }
}

}  // namespace shardwire
