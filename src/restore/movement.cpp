// SPDX-License-Identifier: Apache-2.0
#include "restore/movement.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "move/traits.hpp"

namespace shardwire::restore {

namespace {

// A source that has delivered bytes this shortly before the deadline keeps up.
constexpr auto keeping_up = std::chrono::milliseconds(500);

bool comes_by_message(Method method) {
  return move::carrier_of(method) == move::Carrier::messages;
}

// Mapped memory shows that it is published still, whether or not its owner lives.
bool word_says_live(const Binding& binding) {
  return binding.word.is_mapped() && binding.word.says_live(binding.record.generation);
}

// Flips one bit of a part in host memory. Returns the digest of the part afterwards.
Digest128 flip_bit(const move::TransferPart& part) {
  const move::Transfer& transfer = *part.transfer;
  const memory::StridedCopy place(part.box, transfer.wanted, memory::packed(part.box), transfer.item_bytes);
  transfer.target[place.source_span().first] ^= std::byte{1};
  return memory::digest_box(part.box, transfer.wanted, transfer.target, transfer.item_bytes);
}

// Bytes that hardware or the kernel reads are compared with a digest of their source, which checks its blocks first. Messages
// are of checked blocks anyway, and loaded memory is checked here.
bool wants_digests(const RestoreOptions& options, const Sources& sources, std::span<const move::Transfer> transfers) {
  if (options.verify == Verify::digest) return true;
  return std::ranges::any_of(transfers, [&](const move::Transfer& one) {
    return move::carrier_of(one.method) == move::Carrier::reads && sources[one.peer]->binding().digests;
  });
}

}  // namespace

Movement::Movement(const Context& context, Reports reports, const Target& target, const Planning& planning,
                   const Sources& sources, std::span<const move::Transfer> transfers, move::CollectiveRounds* rounds,
                   std::shared_ptr<move::StagingPool> staging)
    : context_(context),
      reports_(std::move(reports)),
      target_(target),
      planning_(planning),
      sources_(sources),
      callbacks_(reports_.failed),
      retry_(context.clock),
      staging_(std::move(staging)),
      checks_(sources.size()),
      arrivals_(sources.size(), {0, context.clock.now()}),
      digests_(wants_digests(target.options, sources, transfers)),
      blocks_(context, sources, reports_.failed, reports_.quieter, target.digests) {
  const RestoreOptions& options = target.options;
  if (!staging_ || staging_->budget_bytes() != options.staging_bytes) {
    staging_ = std::make_shared<move::StagingPool>(options.staging_bytes, move::slot_bytes_for(context.costs));
  }
  staging_->forget_peak();
  move::Requests& requests = *this;
  move::Events& events = *this;
  const move::EngineOptions engine_options{.ingress_bytes_per_second = options.ingress_bytes_per_second,
                                           .digests = digests_,
                                           .costs = context.costs,
                                           .payloads = context.payloads,
                                           .rounds = rounds,
                                           .now = [&clock = context.clock] { return clock.now(); }};
  engine_ = std::make_unique<move::Engine>(context.copies, staging_, engine_options, requests, events);
}

Movement::~Movement() = default;

void Movement::start(std::shared_ptr<const std::vector<move::Transfer>> transfers) {
  transfers_ = std::move(transfers);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Binding& binding = sources_[i]->binding();
    const auto& read_by = binding.path.read_by;
    const transport::Path path = read_by ? binding.connected[*read_by].path : transport::Path{};
    engine_->limit(static_cast<std::uint32_t>(i), {.max_pack_bytes = binding.max_pack_bytes,
                                                   .first_request = context_.first_request(),
                                                   .max_ranges = path.max_read_ranges,
                                                   .max_read_bytes = path.max_read_bytes,
                                                   .max_reads = path.max_reads,
                                                   .max_message_ranges = binding.max_message_ranges()});
    sources_[i]->begin_moving();
  }
  engine_->add(transfers_);
  blocks_.start(*transfers_);
  for (const auto& source : sources_) {
    if (source->state() == Source::State::lost) lose(*source);
  }
  reports_.undelivered();
  advance();
}

void Movement::advance() {
  if (stopped_) return reports_.quieter();
  if (moved_) return;
  callbacks_.run([this] {
    const auto retry = engine_->pump(context_.clock.now());
    if (context_.probe != nullptr) tell_probe();
    if (stopped_) return;
    while (const auto source = engine_->ledger().next_due()) prove_reads(*source);
    bool more = false;
    for (const auto& [source, left] : left_) more = take_back(source) || more;
    if (more) reports_.undelivered();
    if (stopped_) return;
    if (engine_->settled() && doubtful_.empty()) {
      moved_ = true;
      retry_.stop();
      if (context_.probe != nullptr && target_.options.verify != Verify::digest) spoil();
      return reports_.moved();
    }
    if (retry) retry_.start(*retry - context_.clock.now(), [this] { advance(); });
  });
}

// --- requests and events of the engine ---

transport::Endpoint& Movement::endpoint(std::uint32_t peer) {
  const Binding& binding = sources_[peer]->binding();
  return *binding.connected[binding.path.read_by.value()].channel->endpoint;
}

void Movement::ask(std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts,
                   move::MessageForm form) {
  wire::PackRequest message{.request = request,
                            .lease = 0,
                            .parts = {},
                            .each = form == move::MessageForm::each,
                            .digest = digests_,
                            .gathered = form == move::MessageForm::gathered};
  message.parts.reserve(parts.size());
  for (move::PackPart& part : parts) message.parts.push_back({part.held_tensor, part.box});
  Source& source = *sources_[peer];
  source.requests().ask_for_payload(
      std::move(message), callbacks_.wrap([this, &source](const std::string& why) { messages_ended(source, why); }),
      callbacks_.wrap([this, &source, request](const std::vector<wire::RequestedBox>& blocks) {
        refused_as_corrupt(source, request, blocks);
      }));
}

void Movement::forget(std::uint32_t peer, std::uint64_t request) {
  sources_[peer]->binding().link->forget(request);
}

void Movement::failed(const std::exception_ptr& error) {
  reports_.failed(error);
  advance();
}

void Movement::peer_failed(std::uint32_t peer, const transport::Fault& fault) {
  Source& source = *sources_[peer];
  if (source.state() == Source::State::lost) return advance();  // all that was under way fails
  if (fault.code == ErrorCode::cancelled) {
    path_lost(source, PathLoss::aborted, fault.message);
  } else if (fault.code == ErrorCode::withdrawn) {
    path_lost(source, PathLoss::refused, fault.message);
  } else if (fault.code == ErrorCode::peer_lost && target_.alone) {
    // A source that is lost loses its link too. One that answers has lost the path only.
    if (left_.contains(peer)) return advance();
    doubtful_.emplace(peer, fault.message);
    take_back(peer);
    ask_doubtful();
  } else {
    reports_.failed(std::make_exception_ptr(
        Error(fault.code, fmt::format("source rank {}: {}", to_int(source.rank()), fault.message),
              std::vector<Rank>{source.rank()})));
  }
  advance();
}

void Movement::digested(const move::TransferPart& part, const Digest128& digest) {
  const move::Carrier carrier = move::carrier_of(part.transfer->method);
  const bool published = sources_[part.transfer->peer]->binding().digests;
  if (published && carrier == move::Carrier::mapping) return;  // see BlockChecks
  if (target_.options.verify != Verify::digest && carrier != move::Carrier::reads) return;
  callbacks_.run([&] { checks_.add(part, is_spoilt(*part.transfer) ? flip_bit(part) : digest); });
}

void Movement::differs(const move::TransferPart& part) {
  const Source& source = *sources_[part.transfer->peer];
  if (source.binding().digests && target_.outlives_sources) {
    const auto parts = engine_->take_differing(part.transfer->peer);
    returned_.insert(returned_.end(), parts.begin(), parts.end());
    note_corrupt(parts);
    return advance();
  }
  failed(std::make_exception_ptr(differing_parts(std::span(&part, 1), planning_, *target_.wanted.manifest,
                                                 target_.catalog().layout_rank(), source.rank())));
}

void Movement::compare_digests(std::function<void()> done) {
  const auto differ = [this](std::span<const move::TransferPart> parts, std::span<const wire::RequestedBox> blocks) {
    const Source& source = *sources_[parts.front().transfer->peer];
    if (!source.binding().digests) {
      throw differing_parts(parts, planning_, *target_.wanted.manifest, target_.catalog().layout_rank(), source.rank());
    }
    rotten_.insert(rotten_.end(), parts.begin(), parts.end());
    blocks.empty() ? note_corrupt(parts) : note_corrupt(source, blocks);
  };
  for (const auto& source : sources_) {
    if (source->state() == Source::State::lost) checks_.forget(source->index());
  }
  check_blocks([this, differ, done = std::move(done)] { checks_.ask(sources_, differ, done); });
}

// --- drills ---

void Movement::tell_probe() {
  const ByteCount remote = tally().done_bytes() - tally().method_bytes(Method::local);
  if (remote > probed_bytes_) context_.probe->arrived(remote - probed_bytes_);
  probed_bytes_ = remote;
}

bool Movement::is_spoilt(const move::Transfer& transfer) {
  Probe* const probe = context_.probe;
  return probe != nullptr && transfer.method != Method::local && transfer.target_device == memory::on_host &&
         probe->spoils(sources_[transfer.peer]->rank());
}

// Without digests, only the caller can check what has arrived.
void Movement::spoil() {
  for (const move::Transfer& transfer : transfers()) {
    if (!left_.contains(transfer.peer) && is_spoilt(transfer)) flip_bit({transfer, transfer.box});
  }
}

// --- sources whose bytes do not arrive ---

void Movement::look_after_sources() {
  if (stopped_ || moved_ || !transfers_) return;
  ask_doubtful();
  const auto now = context_.clock.now();
  for (const auto& source : sources_) {
    Arrivals& known = arrivals_[source->index()];
    const ByteCount bytes = tally().peer_bytes(static_cast<std::uint32_t>(source->index()));
    if (bytes != known.bytes) known = {bytes, now};
  }
  for (const auto& source : sources_) {
    if (stopped_) return;
    if (engine_->dropped(static_cast<std::uint32_t>(source->index()))) continue;
    if (arrivals_[source->index()].last != now) look_at_channel(*source);
  }
  for (const auto& source : sources_) {
    if (stopped_) return;
    if (now - arrivals_[source->index()].last >= keeping_up) look_at_reads(*source);
  }
}

// The endpoint has failed while messages are due. The fabric reports no error for messages that the source never
// started, so the source is asked.
void Movement::look_at_channel(Source& source) {
  if (!message_channel_failed(source)) return;
  constexpr const char* why = "the connection that its payloads come over has ended";
  if (source.binding().message_channel()->aborted) return messages_ended(source, why);
  source.requests().ask_if_live(callbacks_.wrap([this, &source] {
    if (!stopped_) messages_ended(source, why);
  }));
}

bool Movement::message_channel_failed(const Source& source) const {
  const Binding& binding = source.binding();
  const FabricChannel* const channel = binding.message_channel();
  if (binding.is_own() || channel == nullptr || !channel->endpoint->failed()) return false;
  const auto peer = static_cast<std::uint32_t>(source.index());
  ByteCount expected = 0;
  for (const move::Transfer& transfer : transfers()) {
    if (transfer.peer == peer && comes_by_message(transfer.method)) expected += move::bytes_of(transfer);
  }
  ByteCount got = 0;
  for (const move::MethodTraits& one : move::method_table) {
    if (comes_by_message(one.method)) got += tally().peer_bytes(peer, one.method);
  }
  return got < expected;
}

// Hardware may report a refused access late, or never.
void Movement::look_at_reads(Source& source) {
  const Binding& binding = source.binding();
  if (!binding.path.read_by || !engine_->writes_from(static_cast<std::uint32_t>(source.index()))) return;
  const auto published = context_.directory.publication(target_.options.name, binding.record.member);
  if (!published || *published != binding.record) source.requests().ask_if_live([] {});
}

// Again and again: another answer may be due, which tells nothing of this.
void Movement::ask_doubtful() {
  for (const auto& [index, why] : std::map(doubtful_)) {
    Source& source = *sources_[index];
    source.requests().ask_if_live(
        callbacks_.wrap([this, &source, why = why] { path_lost(source, PathLoss::ended, why); }));
  }
}

void Movement::messages_ended(Source& source, const std::string& why) {
  const FabricChannel* const channel = source.binding().message_channel();
  const bool aborted = channel != nullptr && channel->aborted;
  path_lost(source, aborted ? PathLoss::aborted : PathLoss::ended, why);
}

// Once for each source: all that was under way over a connection fails.
void Movement::path_lost(Source& source, PathLoss loss, const std::string& why) {
  const bool known = left_.contains(source.index()) && !doubtful_.contains(source.index());
  if (!stopped_ && !known) reports_.path_lost(source, loss, why);
  advance();
}

std::span<const move::Transfer> Movement::transfers() const {
  return transfers_ ? std::span<const move::Transfer>(*transfers_) : std::span<const move::Transfer>();
}

std::vector<Gap> Movement::missing() const {
  std::vector<Gap> gaps;
  const std::vector<Piece>& pieces = planning_.plan.pieces;
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (tally().complete(i)) continue;
    gaps.push_back(
        gap_of(planning_, *target_.wanted.manifest, i, planning_.plan.box(pieces[i]), target_.catalog().layout_rank()));
  }
  return gaps;
}

std::vector<SourceProgress> Movement::progress() const {
  std::vector<SourceProgress> progress = progress_of(sources_, context_);
  const auto now = context_.clock.now();
  for (std::size_t i = 0; i < progress.size(); ++i) progress[i].keeps_up = now - arrivals_[i].last < keeping_up;
  for (const move::Transfer& transfer : transfers()) {
    progress[transfer.peer].outstanding_bytes += move::bytes_of(transfer);
  }
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    ByteCount& left = progress[i].outstanding_bytes;
    left -= std::min(left, tally().peer_bytes(static_cast<std::uint32_t>(i)));
  }
  return progress;
}

// --- lost sources ---

void Movement::lose(const Source& source) {
  const std::size_t index = source.index();
  doubtful_.erase(index);
  if (const auto found = left_.find(index); found != left_.end() && !outlives(source, transfers())) {
    found->second.mapped = move::Engine::Mapped::dropped;  // only its path was lost before
  }
  take_back(index);
  // Operations under way end only with their channel, those into staging too.
  if (tally().owed_bytes(static_cast<std::uint32_t>(index)) == 0) return;
  const bool stays_mapped = left_.at(index).mapped == move::Engine::Mapped::kept;
  for (const ConnectedFabric& one : source.binding().connected) {
    if (!stays_mapped || !one.path.map) one.channel->abort();
  }
}

void Movement::continue_without(const Source& source) {
  checks_.forget(source.index());
  blocks_.source_lost();
  advance();
}

std::vector<std::size_t> Movement::lose_path(const Source& source) {
  doubtful_.erase(source.index());
  left_.try_emplace(source.index(), Left{move::Engine::Mapped::kept, {}});
  take_back(source.index());
  const Binding& binding = source.binding();
  const bool any_failed = !binding.still_connected();
  std::vector<std::size_t> fabrics;
  for (std::size_t i = 0; i < binding.connected.size(); ++i) {
    const ConnectedFabric& one = binding.connected[i];
    const bool carries = !one.path.map && (binding.path.read_by == i || binding.path.sent_by == i);
    if (any_failed ? !one.channel->endpoint->failed() : !carries) continue;
    one.channel->abort();
    fabrics.push_back(one.fabric);
  }
  return fabrics;
}

bool Movement::has_carried(const Source& source) const {
  const auto peer = static_cast<std::uint32_t>(source.index());
  return std::ranges::any_of(move::method_table, [&](const move::MethodTraits& one) {
    const bool over_connection = one.carrier == move::Carrier::messages || one.carrier == move::Carrier::reads;
    return over_connection && tally().peer_bytes(peer, one.method) > 0;
  });
}

ByteCount Movement::take_waiting(const Source& source) {
  if (stopped_ || moved_) return 0;
  ByteCount bytes = 0;
  for (const move::TransferPart& part : engine_->take_waiting(static_cast<std::uint32_t>(source.index()))) {
    bytes += part.bytes();
    returned_.push_back(part);
  }
  return bytes;
}

bool Movement::take_back(std::size_t source) {
  auto found = left_.find(source);
  if (found == left_.end()) {
    using Mapped = move::Engine::Mapped;
    const bool stays_mapped = outlives(*sources_[source], transfers());
    found = left_.emplace(source, Left{stays_mapped ? Mapped::kept : Mapped::dropped, {}}).first;
  }
  auto& [mapped, left] = found->second;
  const auto parts = engine_->drop(static_cast<std::uint32_t>(source), mapped);
  left.insert(left.end(), parts.begin(), parts.end());
  return !parts.empty();
}

// Pages of an arena live as long as somebody maps them; device memory ends with its owner.
bool Movement::outlives(const Source& source, std::span<const move::Transfer> transfers) {
  return word_says_live(source.binding()) && std::ranges::none_of(transfers, [&](const move::Transfer& one) {
           return one.peer == source.index() && one.method == Method::mapped && one.source_device != memory::on_host;
         });
}

// No order holds between reads: the word is read after the bytes have arrived, and proves these only.
void Movement::prove_reads(std::size_t source) {
  const Binding& binding = sources_[source]->binding();
  if (sources_[source]->state() != Source::State::moving || !binding.word.region) return;
  const auto peer = static_cast<std::uint32_t>(source);
  const auto prove = [this, peer, mark = engine_->ledger().mark(peer)](bool live) {
    if (live) engine_->ledger().prove(peer, mark);
  };
  if (binding.word.is_mapped()) return prove(word_says_live(binding));
  sources_[source]->requests().read_generation(prove);
}

// A source sends only while the publication is live, which proves messages that are copied: see Run::confirm(). A word
// that is still mapped shows whether the memory was taken back, however it was read. Of other reads the ledger knows. Digests
// of a lost source cannot be compared any more.
Movement::Proof Movement::proof_of(const move::Transfer& transfer) const {
  if (sources_[transfer.peer]->state() == Source::State::released) return Proof::all;  // confirmed
  if (target_.options.verify == Verify::digest) return Proof::none;
  const auto by = move::carrier_of(transfer.method);
  if (by == move::Carrier::messages) return messages_are_copied() ? Proof::all : Proof::none;
  if (by != move::Carrier::mapping && by != move::Carrier::reads) return Proof::none;
  const Binding& binding = sources_[transfer.peer]->binding();
  if (by == move::Carrier::mapping) {
    return word_says_live(binding) && blocks_.can_check(transfer.peer) ? Proof::all : Proof::none;
  }
  if (binding.digests) return Proof::none;  // compared with digests of the source, which a lost one does not take
  if (binding.word.is_mapped()) return word_says_live(binding) ? Proof::all : Proof::none;
  return Proof::by_part;
}

std::vector<PieceBox> Movement::undelivered(const Source* of) const {
  if (left_.empty() && returned_.empty() && corrupt_.empty()) return {};  // nothing went wrong
  std::vector<PieceBox> boxes;
  // A source that lives confirms what has arrived; after the end, none does any more.
  const auto is_lost = [&](const Source& source) {
    return left_.contains(source.index()) && (ended_ || source.state() == Source::State::lost);
  };
  const auto is_delivered = [&](const move::Transfer& transfer) {
    return !is_lost(*sources_[transfer.peer]) || proof_of(transfer) != Proof::none;
  };
  std::vector<move::TransferPart> left = parts_left(of);
  for (const auto& source : sources_) {
    if (!is_lost(*source) || (of != nullptr && of != source.get())) continue;
    for (const move::TransferPart& part : engine_->ledger().unproven(static_cast<std::uint32_t>(source->index()))) {
      if (proof_of(*part.transfer) == Proof::by_part) left.push_back(part);
    }
  }
  TensorsOfHolders incomplete;
  if (keeps_holders_apart()) {
    for (const move::TransferPart& part : left) incomplete.insert(tensor_of_holder(*part.transfer));
    for (const FoundCorrupt& one : corrupt_) incomplete.emplace(one.tensor, one.holder);
    for (const move::Transfer& transfer : transfers()) {
      if (!is_delivered(transfer)) incomplete.insert(tensor_of_holder(transfer));
    }
  }
  std::set<const move::Transfer*> again;
  for (const move::Transfer& transfer : transfers()) {
    if (of != nullptr && of != sources_[transfer.peer].get()) continue;
    if (is_delivered(transfer) && !incomplete.contains(tensor_of_holder(transfer))) continue;
    again.insert(&transfer);
    boxes.push_back({transfer.piece, transfer.box});
  }
  left.insert(left.end(), rotten_.begin(), rotten_.end());
  for (const move::TransferPart& part : left) {
    if (!again.contains(part.transfer)) boxes.push_back({part.transfer->piece, part.box});
  }
  return joined(std::move(boxes));
}

std::vector<PieceBox> Movement::unproven() {
  ended_ = true;
  for (std::size_t i = 0; i < sources_.size(); ++i) take_back(i);
  if (accounts_for_all()) return undelivered();
  std::vector<PieceBox> boxes;  // some operation has not ended: its parts are unknown
  for (const move::Transfer& transfer : transfers()) boxes.push_back({transfer.piece, transfer.box});
  return joined(std::move(boxes));
}

std::vector<PieceBox> Movement::owed_by(const Source& source) const {
  const bool stays_mapped = outlives(source, transfers());
  const auto is_owed = [&](const move::Transfer& transfer) {
    if (transfer.peer != source.index() || (stays_mapped && transfer.method == Method::mapped)) return false;
    return !tally().complete(transfer.piece) || proof_of(transfer) != Proof::all;
  };
  TensorsOfHolders incomplete;
  for (const move::Transfer& transfer : transfers()) {
    if (keeps_holders_apart() && is_owed(transfer)) incomplete.insert(tensor_of_holder(transfer));
  }
  std::vector<PieceBox> boxes;
  for (const move::Transfer& transfer : transfers()) {
    if (is_owed(transfer) || incomplete.contains(tensor_of_holder(transfer))) {
      boxes.push_back({transfer.piece, transfer.box});
    }
  }
  return boxes;
}

ByteCount Movement::resent_bytes(const Source& of) const {
  ByteCount bytes = 0;
  for (const PieceBox& one : undelivered(&of)) bytes += bytes_of(planning_, *target_.wanted.manifest, one);
  for (const move::TransferPart& part : parts_left(&of)) bytes -= part.bytes();
  return bytes;
}

std::vector<move::TransferPart> Movement::parts_left(const Source* of) const {
  std::vector<move::TransferPart> parts;
  for (const move::TransferPart& part : returned_) {
    if (of == nullptr || of->index() == part.transfer->peer) parts.push_back(part);
  }
  for (const auto& [source, left] : left_) {
    if (of == nullptr || of->index() == source) parts.insert(parts.end(), left.parts.begin(), left.parts.end());
  }
  return parts;
}

bool Movement::accounts_for_all() const {
  ByteCount left = 0;
  for (const move::TransferPart& part : parts_left(nullptr)) left += part.bytes();
  return engine_->settled() && left == tally().dropped_bytes();
}

// --- bytes that are not what was published ---

TensorId Movement::tensor_of(const move::Transfer& transfer) const {
  return planning_.plan.pieces[transfer.piece].tensor;
}

std::pair<TensorId, Rank> Movement::tensor_of_holder(const move::Transfer& transfer) const {
  return {tensor_of(transfer), sources_[transfer.peer]->holder()};
}

void Movement::refused_as_corrupt(const Source& source, std::uint64_t request,
                                  std::span<const wire::RequestedBox> blocks) {
  const auto parts = engine_->refuse(static_cast<std::uint32_t>(source.index()), request);
  returned_.insert(returned_.end(), parts.begin(), parts.end());
  if (!parts.empty()) note_corrupt(source, blocks);
  advance();
}

// Blocks that nothing was read of are not of this restore.
void Movement::note_corrupt(const Source& source, std::span<const wire::RequestedBox> blocks) {
  for (const wire::RequestedBox& block : blocks) {
    const auto touched = std::ranges::find_if(transfers(), [&](const move::Transfer& one) {
      return one.peer == source.index() && one.held_tensor == block.tensor && one.box.dims() == block.box.dims() &&
             intersect(one.box, block.box);
    });
    if (touched == transfers().end()) {
      throw Error(ErrorCode::transport_failed,
                  fmt::format("source rank {} reports corrupt blocks that were not asked for", to_int(source.rank())),
                  std::vector<Rank>{source.rank()});
    }
    on_corrupt(source, tensor_of(*touched), block.box);
  }
}

void Movement::note_corrupt(std::span<const move::TransferPart> parts) {
  for (const move::TransferPart& part : parts) {
    on_corrupt(*sources_[part.transfer->peer], tensor_of(*part.transfer), part.box);
  }
}

void Movement::on_corrupt(const Source& source, TensorId tensor, const Box& where) {
  const TensorKey& key = target_.wanted.manifest->tensors[to_index(tensor)].spec.key;
  const CorruptBox box{key.fqn, key.state, where, source.rank()};
  const auto is_known = [&](const FoundCorrupt& one) { return one.holder == source.holder() && one.box == box; };
  if (std::ranges::any_of(corrupt_, is_known)) return;  // several requests touch one block
  const std::string text = fmt::format("{}:{} {} is not what source rank {} has published", box.fqn, box.state,
                                       to_string(box.box), to_int(box.source));
  context_.log(LogLevel::warning, text);
  corrupt_.push_back({tensor, source.holder(), box});
  if (target_.outlives_sources) return;  // another run moves it again
  throw Error(ErrorCode::corrupt, text,
              std::vector<Gap>{{box.fqn, box.state, box.box, target_.catalog().layout_rank()}},
              std::vector<Rank>{box.source});
}

void Movement::check_blocks(std::function<void()> done) {
  const auto differ = [this](const Source& source, const wire::RequestedBox& block) {
    note_corrupt(source, std::span(&block, 1));
    for (const move::Transfer& transfer : transfers()) {
      if (transfer.peer != source.index() || transfer.held_tensor != block.tensor) continue;
      if (const auto part = intersect(transfer.box, block.box)) rotten_.emplace_back(transfer, *part);
    }
  };
  blocks_.check(transfers(), differ, std::move(done));
}

// --- the end ---

void Movement::stop() {
  stopped_ = true;
  retry_.stop();
  blocks_.stop();
  engine_->stop();
}

bool Movement::quiet(bool fabrics_dead) const {
  return blocks_.idle() && (fabrics_dead ? engine_->copies_idle() : engine_->idle());
}

// An aborted link is not reused: a later restore creates a new one. Links stay for new plans, of this and of other
// restores, which use other channels: a source may send over any of them.
void Movement::abort_connections(bool keeps_links) {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Binding& binding = sources_[i]->binding();
    if (!binding.link || !engine_->writes_from(static_cast<std::uint32_t>(i))) continue;
    for (const ConnectedFabric& one : binding.connected) one.channel->abort();
    binding.link->abort_channels();
    if (keeps_links || binding.link->watchers() > 1) continue;
    binding.link->abort(
        Error(ErrorCode::cancelled, "another restore that used the connection was stopped, and closed it"));
  }
}

}  // namespace shardwire::restore
