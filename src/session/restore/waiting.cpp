// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "session/restore/outlook.hpp"
#include "session/restore/run.hpp"
#include "support/list_of.hpp"

namespace shardwire {

namespace {

// A source that has delivered something this long before the deadline keeps up.
constexpr auto keeps_up = std::chrono::milliseconds(500);
constexpr std::size_t max_named = 8;

std::string readable(ByteCount bytes) {
  constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(units)) value /= 1000, ++unit;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, units[unit]);
}

std::string source_ranks_text(const std::vector<int>& ranks) {
  return fmt::format("source rank{} {}", ranks.size() == 1 ? "" : "s", support::runs_of(ranks));
}

std::string members_text(const std::vector<int>& members, const char* one, const char* several) {
  if (members.size() == 1) return fmt::format("member {} {}", members.front(), one);
  return fmt::format("members {} {}", support::runs_of(members), several);
}

std::vector<Rank> ranks_from(const std::vector<int>& numbers) {
  std::vector<Rank> ranks;
  for (const int number : numbers) ranks.push_back(Rank{number});
  return ranks;
}

std::map<std::int64_t, std::vector<int>> by_step(const std::vector<wire::PublicationRecord>& records) {
  std::map<std::int64_t, std::vector<int>> steps;
  for (const auto& record : records) steps[record.step].push_back(record.layout_rank);
  return steps;
}

std::vector<int> open_ranks(const std::vector<wire::PublicationRecord>& records, int ranks) {
  std::vector<int> open;
  auto next = records.begin();  // by layout rank
  for (int rank = 0; rank < ranks; ++rank) {
    while (next != records.end() && next->layout_rank < rank) ++next;
    if (next == records.end() || next->layout_rank != rank) open.push_back(rank);
  }
  return open;
}

}  // namespace

std::vector<int> RestoreRun::awaited(int ranks) const {
  if (core_.membership().lost() != nullptr) return {};
  const auto records = published();
  const bool listed =
      std::any_of(records.begin(), records.end(), [&](const auto& record) { return record.member == core_.member(); });
  const bool own_on_its_way = !listed && core_.publisher().live(options_.from) != nullptr;
  return possible_publishers(core_.directory(), records, {core_.member(), own_on_its_way, options_.step, ranks});
}

int RestoreRun::source_ranks() const {
  for (const auto& record : published()) {
    if (const auto found = core_.metadata().manifests.find(record.manifest);
        found != core_.metadata().manifests.end()) {
      return found->second->ranks;
    }
  }
  return 0;
}

// --- verdicts ---

Error RestoreRun::step_not_published() const {
  std::vector<std::string> text;
  std::vector<int> named;
  for (const auto& [step, ranks] : by_step(published())) {
    if (step == *options_.step) continue;
    text.push_back(fmt::format("at step {} by {}", step, source_ranks_text(ranks)));
    named.insert(named.end(), ranks.begin(), ranks.end());
  }
  return {
      ErrorCode::step_mismatch,
      fmt::format("'{}' is published {}, step {} was asked for", options_.from, fmt::join(text, ", "), *options_.step),
      last_gaps_, ranks_from(named)};
}

void RestoreRun::steps_differ(const std::vector<wire::PublicationRecord>& records) const {
  const auto steps = by_step(records);
  std::vector<std::string> text;
  std::vector<int> behind;
  for (const auto& [step, ranks] : steps) {
    text.push_back(fmt::format("step {} by {}", step, source_ranks_text(ranks)));
    if (step != steps.rbegin()->first) behind.insert(behind.end(), ranks.begin(), ranks.end());
  }
  throw Error(ErrorCode::step_mismatch,
              fmt::format("the sources of '{}' are not at one step: {}", options_.from, fmt::join(text, ", ")),
              ranks_from(behind));
}

void RestoreRun::nobody_left() const {
  core_.membership().require_rendezvous(fmt::format("who else publishes '{}'", options_.from));
  if (options_.step && !published().empty()) throw step_not_published();
  std::vector<int> left;
  std::vector<int> lost;
  for (const auto& [member, presence] : core_.directory().departed()) {
    (presence == wire::Presence::left ? left : lost).push_back(member);
  }
  std::vector<std::string> text;
  if (!left.empty()) text.push_back(fmt::format("{} left", members_text(left, "has", "have")));
  if (!lost.empty()) text.push_back(fmt::format("{} lost", members_text(lost, "is", "are")));
  left.insert(left.end(), lost.begin(), lost.end());
  throw Error(
      withdrawn_ ? ErrorCode::withdrawn : ErrorCode::peer_lost,
      fmt::format("nobody publishes '{}', and nobody is left who could: {}", options_.from, fmt::join(text, ", ")),
      ranks_from(left));
}

bool RestoreRun::is_not_replaced(const std::vector<wire::PublicationRecord>& records) const {
  return withdrawn_ && std::ranges::none_of(records, [&](const auto& record) {
           return record.layout_rank == to_int(withdrawn_->ranks().front());
         });
}

void RestoreRun::incomplete() const {
  const auto records = sources();
  if (options_.step && published().size() > records.size()) {
    core_.membership().require_rendezvous(fmt::format("who publishes step {} of '{}'", *options_.step, options_.from));
    throw step_not_published();
  }
  const int ranks = source_ranks();
  const std::vector<int> open = open_ranks(records, ranks);
  try {
    require_complete(last_gaps_, last_absent_);
  } catch (const Error& error) {
    if (open.empty()) throw;
    if (is_not_replaced(records)) {
      throw Error(ErrorCode::withdrawn, fmt::format("{}, and it was not published again", withdrawn_->what()),
                  error.gaps(), withdrawn_->ranks());
    }
    const Error* const unheard = core_.membership().lost();
    throw Error(unheard == nullptr ? error.code() : unheard->code(),
                fmt::format("{}; {} of {} {} not published '{}'{}", error.what(), source_ranks_text(open), ranks,
                            open.size() == 1 ? "has" : "have", options_.from,
                            unheard == nullptr ? "" : fmt::format(", and {}", unheard->what())),
                error.gaps(), ranks_from(open));
  }
  throw Error(ErrorCode::internal, "a complete plan was taken for an incomplete one");
}

// --- the deadline ---

void RestoreRun::deadline_passed() {
  const bool reading = stage_ == Stage::bind || stage_ == Stage::move || stage_ == Stage::verify;
  if (reading) throw late_source();
  if (stage_ == Stage::plan && !last_gaps_.empty()) incomplete();
  if (stage_ == Stage::commit) throw Error(ErrorCode::timed_out, "the deadline passed while zeros were written");
  throw late_in_plan();
}

Error RestoreRun::late_in_plan() const {
  const auto records = sources();
  if (records.empty() && !published().empty()) return step_not_published();
  if (is_not_replaced(records)) {
    return {ErrorCode::withdrawn,
            fmt::format("{}, and it was not published again before the deadline", withdrawn_->what()),
            withdrawn_->ranks()};
  }
  if (records.empty()) {
    std::vector<int> others = awaited(0);
    if (others.size() > 1) std::erase(others, core_.member());
    return {ErrorCode::timed_out,
            fmt::format("nobody has published '{}' before the deadline; {} done so", options_.from,
                        members_text(others, "could have", "could have")),
            ranks_from(others)};
  }
  std::vector<int> silent;
  for (const auto& [digest, rank] : asked_) silent.push_back(rank);
  std::sort(silent.begin(), silent.end());
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  if (!silent.empty()) {
    return {ErrorCode::timed_out,
            fmt::format("the deadline passed: waiting for {} to describe what it publishes as '{}'",
                        source_ranks_text(silent), options_.from),
            ranks_from(silent)};
  }
  const std::vector<int> open = open_ranks(records, source_ranks());
  if (!open.empty()) {
    return {ErrorCode::timed_out,
            fmt::format("the deadline passed: {} of {} {} not published '{}'", source_ranks_text(open), source_ranks(),
                        open.size() == 1 ? "has" : "have", options_.from),
            ranks_from(open)};
  }
  return {ErrorCode::timed_out, "the deadline passed while this rank was planning",
          std::vector<Rank>{wanted_.layout_rank()}};
}

std::vector<ByteCount> RestoreRun::outstanding() const {
  std::vector<ByteCount> bytes(peers_.size());
  if (!engine_ || !transfers_) return bytes;
  for (const move::Transfer& transfer : *transfers_) bytes[transfer.peer] += move::bytes_of(transfer);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    for (std::size_t way = 0; way < way_count; ++way) {
      bytes[i] -= std::min(bytes[i], engine_->tally().peer_bytes(static_cast<std::uint32_t>(i), static_cast<Way>(way)));
    }
  }
  return bytes;
}

void RestoreRun::note_arrivals() {
  if (stage_ != Stage::move || !engine_) return;
  const auto now = Clock::now();
  arrivals_.resize(peers_.size(), {0, now});
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    ByteCount bytes = 0;
    for (std::size_t way = 0; way < way_count; ++way) {
      bytes += engine_->tally().peer_bytes(static_cast<std::uint32_t>(i), static_cast<Way>(way));
    }
    if (bytes == arrivals_[i].bytes) continue;
    arrivals_[i] = {bytes, now};
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const auto peer = static_cast<std::uint32_t>(i);
    if (arrivals_[i].last == now || !message_channel_ended(i)) continue;
    if (message_channel_is_cut(peers_[i])) return payloads_ended(peer);
    ask_source(i, [this, peer] { payloads_ended(peer); });
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (now - arrivals_[i].last >= keeps_up && reads_may_be_refused(i)) ask_source(i, [] {});
  }
}

// Hardware that is refused need not say so, or not soon.
bool RestoreRun::reads_may_be_refused(std::size_t index) const {
  const Peer& peer = peers_[index];
  return peer.read_by && engine_->writes_from(static_cast<std::uint32_t>(index)) && !still_published({peer.record});
}

// A source that has taken its memory back says so to whoever asks: for anything under the lease, here the digests of nothing, or
// without one for the publication. While something else is unanswered, that answer will tell.
void RestoreRun::ask_source(std::size_t index, std::function<void()> all_is_well) {
  Peer& peer = peers_[index];
  if (peer.unanswered > 0) return;
  ++peer.unanswered;
  const std::uint64_t number = next_request();
  auto answered = while_running([this, index, all_is_well = std::move(all_is_well)](wire::Message& message) {
    const Peer& source = peers_[index];
    --peers_[index].unanswered;
    if (const auto* confirmed = std::get_if<wire::Released>(&message)) {
      require_intact(source, confirmed->intact);
    } else {
      expect<wire::Digests>(message, source);
    }
    all_is_well();
  });
  if (peer.lease != 0) {
    peer.link->request(number, wire::DigestRequest{number, peer.lease, {}}, std::move(answered));
  } else {
    peer.link->request(number, wire::Confirm{number, options_.from, peer.record.generation}, std::move(answered));
  }
}

// A source that is well says so itself; of what nobody has begun to send, the fabric says nothing.
bool RestoreRun::message_channel_ended(std::size_t index) const {
  const Peer& peer = peers_[index];
  if (!peer.link || !peer.sent_by || !peer.connected[*peer.sent_by].channel->endpoint->failed()) return false;
  const auto comes_by_message = [](Way way) { return way == Way::packed || way == Way::straight; };
  ByteCount expected = 0;
  for (const move::Transfer& transfer : *transfers_) {
    if (transfer.peer == index && comes_by_message(transfer.way)) expected += move::bytes_of(transfer);
  }
  ByteCount arrived = 0;
  for (const Way way : {Way::packed, Way::straight}) {
    arrived += engine_->tally().peer_bytes(static_cast<std::uint32_t>(index), way);
  }
  return arrived < expected;
}

// Sources that keep up are not named while others do not: their bytes may only wait for this rank's rate or staging.
Error RestoreRun::late_source() const {
  if (move_waits_) {
    return {
        ErrorCode::timed_out,
        "the deadline passed: events of the destination's own views had not happened, and nothing is written before",
        std::vector<Rank>{wanted_.layout_rank()}};
  }
  const std::vector<ByteCount> bytes = outstanding();
  const auto stalled = [&](std::size_t i) {
    return i >= arrivals_.size() || Clock::now() - arrivals_[i].last >= keeps_up;
  };
  std::vector<std::size_t> late;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].unanswered > 0 || bytes[i] > 0) late.push_back(i);
  }
  const auto others = [&](std::size_t i) { return !stalled(i) && peers_[i].unanswered == 0; };
  if (!std::all_of(late.begin(), late.end(), others)) std::erase_if(late, others);

  std::vector<std::string> text;
  std::vector<Rank> ranks;
  for (const std::size_t i : late) {
    const Peer& peer = peers_[i];
    ranks.push_back(peer.layout_rank);
    if (text.size() == max_named) continue;
    const wire::MemberRecord* at = core_.directory().address(peer.record.member, peer.record.epoch);
    text.push_back(fmt::format("{} from source rank {}{}", bytes[i] > 0 ? readable(bytes[i]) : "an answer",
                               to_int(peer.layout_rank),
                               at == nullptr ? "" : fmt::format(" ({}:{})", at->address, at->port)));
  }
  if (ranks.size() > text.size()) text.push_back(fmt::format("{} more", ranks.size() - text.size()));
  return {ErrorCode::timed_out,
          text.empty() ? "the deadline passed: all bytes have come, and this rank was not done with them"
                       : fmt::format("the deadline passed: waiting for {}", fmt::join(text, ", ")),
          ranks};
}

}  // namespace shardwire
