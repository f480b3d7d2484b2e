// SPDX-License-Identifier: Apache-2.0
#include "session/publisher.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "support/checked.hpp"
#include "wire/payload_header.hpp"

namespace shardwire {

namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

// Copied by the time a worker would have woken up.
constexpr ByteCount most_copied_here = 128u << 10;

Error withdrawn(const std::string& name) {
  return {ErrorCode::layout_mismatch, fmt::format("'{}' was withdrawn while it was being read", name)};
}

// Several slots, also within a small budget: readers that hang keep some of them.
ByteCount slot_bytes_within(ByteCount budget_bytes, ByteCount slot_bytes) {
  constexpr ByteCount enough_slots = 4;
  constexpr ByteCount least = 64u << 10;  // below that, messages cost more than what is in them
  return std::min(slot_bytes, std::max(budget_bytes / enough_slots, least));
}

constexpr auto by_tensor = [](const auto& a, const auto& b) { return a.tensor < b.tensor; };

bool covers(const detail::Lease& lease, const wire::Part& part) {
  const auto [first, past] = std::equal_range(lease.ranges.begin(), lease.ranges.end(), part, by_tensor);
  return std::any_of(first, past, [&](const wire::TensorRange& range) {
    return range.boxes.empty() ||
           std::any_of(range.boxes.begin(), range.boxes.end(), [&](const Box& box) { return contains(box, part.box); });
  });
}

}  // namespace

Publisher::Publisher(transport::Fabric& fabric, memory::Copier& copier, Staging staging, std::string host)
    : fabric_(fabric),
      copier_(copier),
      host_(std::move(host)),
      marks_(fabric),
      pool_(staging.budget_bytes, slot_bytes_within(staging.budget_bytes, staging.slot_bytes)) {
}

Publisher::~Publisher() {
  readers_.clear();  // ends what is being sent
  for (const Retiring& retiring : retiring_) retiring.done({});
}

void Publisher::add(std::shared_ptr<Publication> publication) {
  const auto [entry, added] = live_.emplace(publication->name, publication);
  if (!added) refuse(fmt::format("'{}' is already published by this member; retire it first", publication->name));
  entry->second->mark = marks_.set(entry->second->generation);
}

std::shared_ptr<detail::PublicationState> Publisher::live(const std::string& name) const {
  const auto found = live_.find(name);
  return found == live_.end() ? nullptr : found->second;
}

// --- leases and withdrawal ---

std::uint64_t Publisher::add_lease(const std::shared_ptr<Publication>& publication, detail::Lease lease) {
  const std::uint64_t number = next_lease_++;
  publication->leases.emplace(number, std::move(lease));
  by_lease_.emplace(number, publication);
  return number;
}

std::uint64_t Publisher::lease_own(Publication& publication) {
  const auto found = live(publication.name);
  if (found.get() != &publication) refuse("the publication has been withdrawn");
  return add_lease(found, {});
}

bool Publisher::release(std::uint64_t lease) {
  const auto found = by_lease_.find(lease);
  if (found == by_lease_.end()) return false;
  const std::shared_ptr<Publication> publication = found->second;
  by_lease_.erase(found);
  const bool intact = !publication->leases.at(lease).revoked;
  publication->leases.erase(lease);
  settle(publication);
  return intact;
}

void Publisher::settle(const std::shared_ptr<Publication>& publication) {
  const auto found = std::find_if(retiring_.begin(), retiring_.end(),
                                  [&](const Retiring& retiring) { return retiring.publication == publication; });
  if (found == retiring_.end() || publication->jobs > 0) return;
  if (!publication->leases.empty() && !found->expired) return;
  std::set<int> members;
  for (const auto& [number, lease] : publication->leases) members.insert(lease.member);
  const auto done = std::move(found->done);
  retiring_.erase(found);
  done({members.begin(), members.end()});
}

void Publisher::retire(const std::shared_ptr<Publication>& publication, Loop& loop, Duration timeout,
                       std::function<void(std::vector<int>)> done) {
  publication->withdrawn = true;
  if (live(publication->name) == publication) live_.erase(publication->name);
  if (const auto mark = std::exchange(publication->mark, std::nullopt)) marks_.clear(*mark);
  auto timer = std::make_unique<Timer>(loop);
  timer->start(timeout, [this, publication] {
    for (auto& [number, lease] : publication->leases) lease.revoked = true;
    for (Retiring& retiring : retiring_) {
      if (retiring.publication == publication) retiring.expired = true;
    }
    // Readers that hang would keep the memory in use for as long as they like.
    std::vector<std::uint64_t> hanging;
    for (const auto& [id, reader] : readers_) {
      const auto reads = [&](const auto& entry) { return entry.second.publication == publication; };
      if (std::any_of(reader.straight.begin(), reader.straight.end(), reads)) hanging.push_back(id);
    }
    const Error why = withdrawn(publication->name);
    for (const std::uint64_t id : hanging) drop(id, &why);
    pump();
    settle(publication);
  });
  retiring_.push_back({publication, std::move(timer), std::move(done)});
  settle(publication);
}

void Publisher::reader_closed(std::uint64_t connection) {
  std::erase_if(queue_, [&](const Packing& packing) { return packing.reader->id() == connection; });
  drop(connection);
  std::vector<std::uint64_t> gone;
  for (const auto& [number, publication] : by_lease_) {
    if (publication->leases.at(number).reader == connection) gone.push_back(number);
  }
  for (const std::uint64_t lease : gone) release(lease);
  pump();  // slots of payloads that were on their way to it are free again
}

void Publisher::drop(std::uint64_t reader, const Error* why) {
  auto found = readers_.extract(reader);
  if (found.empty()) return;
  found.mapped().endpoint.reset();  // completions of what was under way never run
  for (const auto& [number, sending] : found.mapped().straight) {
    if (why != nullptr) sending.connection->send(wire::Failure{number, why->code(), why->what()});
    sending.publication->jobs -= sending.messages;
    settle(sending.publication);
  }
}

void Publisher::submit(const std::shared_ptr<Publication>& publication, ByteCount bytes, memory::Copier::Job job,
                       std::function<void()> done) {
  if (bytes <= most_copied_here) {
    job();
    return done();
  }
  copier_.submit(std::move(job), [this, publication, done = std::move(done)](const std::exception_ptr&) {
    --publication->jobs;
    done();
    settle(publication);
  });
  ++publication->jobs;  // it ends inside poll(), not before this
}

std::shared_ptr<detail::PublicationState> Publisher::leased(std::uint64_t lease, std::uint64_t reader,
                                                            const detail::Lease** found) {
  const auto entry = by_lease_.find(lease);
  if (entry == by_lease_.end()) refuse(fmt::format("there is no lease {}", lease));
  const detail::Lease& held = entry->second->leases.at(lease);
  if (held.reader != reader) refuse(fmt::format("lease {} is another reader's", lease));
  if (held.revoked) throw withdrawn(entry->second->name);
  *found = &held;
  return entry->second;
}

std::shared_ptr<detail::PublicationState> Publisher::readable(const Packing& packing, const detail::Lease** found) {
  if (packing.lease != 0) return leased(packing.lease, packing.reader->id(), found);
  auto publication = live(packing.name);
  if (!publication || publication->generation != packing.generation) throw withdrawn(packing.name);
  return publication;
}

// --- requests ---

void Publisher::serve(Connection& reader, const wire::Message& message) {
  std::visit([&](const auto& request) { serve_one(reader, request); }, message);
}

void Publisher::serve_one(Connection& reader, const wire::ManifestRequest& request) {
  for (const auto& [name, publication] : live_) {
    if (publication->described.manifest_digest == request.digest) {
      return reader.send(wire::ManifestReply{request.digest, publication->described.encoded_manifest});
    }
  }
  // An empty reply means: no longer here. The reader asks somebody else.
  reader.send(wire::ManifestReply{request.digest, {}});
}

void Publisher::serve_one(Connection& reader, const wire::ValuesRequest& request) {
  for (const auto& [name, publication] : live_) {
    if (publication->described.values_digest == request.digest) {
      return reader.send(wire::ValuesReply{request.digest, publication->described.encoded_values});
    }
  }
  reader.send(wire::ValuesReply{request.digest, {}});
}

void Publisher::serve_one(Connection& reader, const wire::Lease& request) {
  const auto publication = live(request.publication);
  if (!publication || publication->generation != request.generation) {
    refuse(fmt::format("'{}' generation {} is not published here any more", request.publication, request.generation));
  }
  for (const wire::TensorRange& range : request.ranges) {
    if (range.tensor >= publication->tensors.size()) {
      refuse(fmt::format("'{}' has no tensor {}", request.publication, range.tensor));
    }
  }
  detail::Lease lease{reader.id(), reader.peer().rank, false, request.ranges};
  std::sort(lease.ranges.begin(), lease.ranges.end(), by_tensor);
  const auto number = add_lease(publication, std::move(lease));
  reader.send(wire::Leased{request.request, number});
}

void Publisher::serve_one(Connection& reader, const wire::Release& request) {
  const auto found = by_lease_.find(request.lease);
  if (found == by_lease_.end() || found->second->leases.at(request.lease).reader != reader.id()) {
    refuse(fmt::format("there is no lease {} of this reader", request.lease));
  }
  reader.send(wire::Released{request.request, release(request.lease)});
}

void Publisher::serve_one(Connection& reader, const wire::Confirm& request) {
  const auto publication = live(request.publication);
  reader.send(wire::Released{request.request, publication && publication->generation == request.generation});
}

void Publisher::serve_one(Connection& reader, const wire::Bind& request) {
  const detail::Lease* lease = nullptr;
  const auto publication = leased(request.lease, reader.id(), &lease);
  if (request.fabric != fabric_.name() || request.domain != fabric_.domain()) {
    throw Error(ErrorCode::unsupported, fmt::format("the reader uses fabric {} ({}), this source {} ({})",
                                                    request.fabric, request.domain, fabric_.name(), fabric_.domain()));
  }
  // A reader that has never heard of strides would take them for dense: it gets those tensors packed.
  const auto& capabilities = reader.peer().capabilities;
  const bool takes_strides = std::find(capabilities.begin(), capabilities.end(), "strides") != capabilities.end();
  wire::Bound bound;
  bound.request = request.request;
  bound.address = fabric_.address();
  bound.max_pack_bytes = pool_.slot_bytes();
  std::map<const detail::ArenaState*, std::uint32_t> regions;
  for (const wire::TensorRange& range : lease->ranges) {
    const Publication::Tensor& tensor = publication->tensors.at(range.tensor);
    wire::TensorHandle handle{range.tensor, wire::no_region, 0, {}};
    if (takes_strides) handle.strides = tensor.strides;
    if (tensor.arena && (tensor.strides.empty() || takes_strides)) {
      const auto memory = tensor.arena->region().bytes();
      const auto [entry, fresh] = regions.emplace(tensor.arena.get(), static_cast<std::uint32_t>(bound.regions.size()));
      if (fresh) bound.regions.push_back({tensor.arena->region().key(), memory.size()});
      handle.region = entry->second;
      handle.offset_bytes = static_cast<ByteCount>(tensor.data - memory.data());
    }
    bound.tensors.push_back(handle);
  }
  if (publication->mark) {
    const transport::Region& marks = marks_.region();
    bound.mark = wire::Bound::Mark{{marks.key(), marks.bytes().size()}, *publication->mark};
  }
  if (const auto known = readers_.find(reader.id()); known == readers_.end() || known->second.endpoint->failed()) {
    drop(reader.id());
    auto endpoint = fabric_.connect(request.address, reader.peer().host == host_);
    readers_[reader.id()].endpoint = std::move(endpoint);
  }
  reader.send(bound);
}

std::vector<Publisher::Source> Publisher::locate(Publication& publication, const detail::Lease* lease,
                                                 const std::vector<wire::Part>& parts, ByteCount* bytes) {
  std::vector<Source> sources;
  sources.reserve(parts.size());
  for (const wire::Part& part : parts) {
    if (lease == nullptr) {
      if (part.tensor >= publication.tensors.size()) refuse(fmt::format("there is no tensor {}", part.tensor));
    } else if (!covers(*lease, part)) {
      refuse(fmt::format("tensor {} {} is not under the lease", part.tensor, to_string(part.box)));
    }
    const TensorSpec& spec = publication.described.manifest->tensors.at(part.tensor).spec;
    const PlacedBox* holder = publication.placed(part.tensor).around(part.box);
    if (holder == nullptr) {
      refuse(fmt::format("{} {} is not held here", to_string(spec.key), to_string(part.box)));
    }
    const ByteCount item_bytes = item_size(spec.dtype);
    *bytes = support::add(*bytes, static_cast<ByteCount>(part.box.volume()) * item_bytes, "the size of a request");
    sources.push_back({part.box, *holder, publication.tensors[part.tensor].data, item_bytes});
  }
  return sources;
}

void Publisher::serve_one(Connection& reader, const wire::PackRequest& request) {
  const detail::Lease* lease = nullptr;
  Packing packing{.reader = reader.shared_from_this(),
                  .number = request.request,
                  .lease = request.lease,
                  .name = request.publication,
                  .generation = request.generation,
                  .sources = {},
                  .digest = request.digest};
  if (request.each && request.lease == 0) refuse("a request for one message per part came without a lease");
  const auto publication = readable(packing, &lease);
  packing.sources = locate(*publication, lease, request.parts, &packing.bytes);
  if (!readers_.contains(reader.id())) refuse("a pack request came before bind");
  if (request.each) return send_straight(publication, packing);
  if (packing.bytes > pool_.slot_bytes()) {
    refuse(fmt::format("a request for {} bytes is larger than a slot of {}", packing.bytes, pool_.slot_bytes()));
  }
  queue_.push_back(std::move(packing));
  pump();
}

void Publisher::pump() {
  while (pool_.free_slots() > 0) {
    const auto next = std::find_if(queue_.begin(), queue_.end(), [&](const Packing& packing) {
      const auto reader = readers_.find(packing.reader->id());
      return reader == readers_.end() || *reader->second.slots < pool_.free_slots();
    });
    if (next == queue_.end()) return;
    Packing packing = std::move(*next);
    queue_.erase(next);
    pack(std::move(packing), pool_.acquire());
  }
}

void Publisher::pack(Packing packing, move::Slot slot) {
  const auto reader = packing.reader;
  const std::uint64_t number = packing.number;
  const detail::Lease* lease = nullptr;
  std::shared_ptr<Publication> publication;
  try {  // again: the lease may have been revoked while the request waited
    publication = readable(packing, &lease);
  } catch (const Error& error) {
    return reader->send(wire::Failure{number, error.code(), error.what()});
  }
  struct Job {
    move::Slot slot;
    std::shared_ptr<std::size_t> slots;  // of the reader; owners: see Reader
    std::vector<Source> sources;
    std::optional<wire::BoxDigest> digest;

    Job() = default;
    ~Job() { give_back(); }
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    void give_back() {
      slot = {};
      if (const auto count = std::exchange(slots, nullptr)) --*count;
    }
  };
  const auto job = std::make_shared<Job>();  // owners: the copy and what follows it
  if (const auto entry = readers_.find(reader->id()); entry != readers_.end()) {
    job->slots = entry->second.slots;
    ++*job->slots;
  }
  job->slot = std::move(slot);
  job->sources = std::move(packing.sources);
  submit(
      publication, packing.bytes,
      [job, digest = packing.digest] {
        std::byte* to = job->slot.bytes().data();
        std::vector<memory::Digest128> digests;
        double digest_seconds = 0;  // the reader counts its own
        for (const Source& source : job->sources) {
          const PlacedBox packed = memory::packed(source.box);
          if (digest) {
            digests.push_back(memory::copy_and_digest(source.box, source.placed, packed, source.item_bytes, source.base,
                                                      to, memory::Stores::cached, digest_seconds));
          } else {
            memory::StridedCopy(source.box, source.placed, packed, source.item_bytes).run_all(source.base, to);
          }
          to += static_cast<ByteCount>(source.box.volume()) * source.item_bytes;
        }
        if (!digest) return;
        const memory::Digest128 all = memory::digest_of(digests);
        job->digest = wire::BoxDigest{all.low, all.high};
      },
      [this, reader, number, job, bytes = packing.bytes] {
        const auto entry = readers_.find(reader->id());
        if (entry == readers_.end()) {  // gone meanwhile: its slot is somebody else's turn
          job->give_back();
          return pump();
        }
        const wire::EncodedHeader header({.request = number, .part = 0, .digest = job->digest});
        entry->second.endpoint->send(header.bytes(), job->slot.bytes().first(static_cast<std::size_t>(bytes)),
                                     [this, reader, number, job](const transport::Outcome& outcome) {
                                       job->give_back();
                                       if (outcome)
                                         reader->send(wire::Failure{number, outcome->code, outcome->message});
                                       pump();
                                     });
      });
}

// No staging: each part leaves from where it lies, so the publication is in use until the last has.
void Publisher::send_straight(const std::shared_ptr<Publication>& publication, const Packing& packing) {
  const auto straight = std::make_shared<Straight>();  // owners: the digests and what follows them
  straight->reader = packing.reader;
  straight->number = packing.number;
  straight->lease = packing.lease;
  for (const Source& source : packing.sources) {
    const memory::StridedCopy copy(source.box, source.placed, memory::packed(source.box), source.item_bytes);
    if (copy.runs() != 1) refuse(fmt::format("{} does not lie in one piece here", to_string(source.box)));
    straight->parts.emplace_back(source.base + copy.source_span().first, static_cast<std::size_t>(copy.bytes()));
  }
  if (!packing.digest) return post(publication, *straight);
  submit(
      publication, packing.bytes,
      [straight, sources = packing.sources] {
        for (const Source& source : sources) {
          const auto digest = memory::digest_box(source.box, source.placed, source.base, source.item_bytes);
          straight->digests.push_back({digest.low, digest.high});
        }
      },
      [this, publication, straight] { post(publication, *straight); });
}

void Publisher::post(const std::shared_ptr<Publication>& publication, const Straight& straight) {
  const detail::Lease* lease = nullptr;
  try {  // again: the lease may have been revoked while digests were taken
    leased(straight.lease, straight.reader->id(), &lease);
  } catch (const Error& error) {
    return straight.reader->send(wire::Failure{straight.number, error.code(), error.what()});
  }
  for (std::size_t i = 0; i < straight.parts.size(); ++i) {
    const auto entry = readers_.find(straight.reader->id());
    if (entry == readers_.end()) return;
    wire::PayloadHeader header{.request = straight.number, .part = static_cast<std::uint32_t>(i)};
    if (!straight.digests.empty()) header.digest = straight.digests[i];
    Sending& sending = entry->second.straight[straight.number];
    sending.publication = publication;
    sending.connection = straight.reader;
    ++sending.messages;
    ++publication->jobs;
    entry->second.endpoint->send(
        wire::EncodedHeader(header).bytes(), straight.parts[i],
        [this, publication, connection = straight.reader, number = straight.number](const transport::Outcome& outcome) {
          if (outcome) connection->send(wire::Failure{number, outcome->code, outcome->message});
          const auto reader = readers_.find(connection->id());
          if (reader == readers_.end()) return;  // drop() has counted it
          const auto sent = reader->second.straight.find(number);
          if (sent == reader->second.straight.end()) return;  // of an endpoint that is gone
          if (--sent->second.messages == 0) reader->second.straight.erase(sent);
          --publication->jobs;
          settle(publication);
        });
  }
}

void Publisher::serve_one(Connection& reader, const wire::DigestRequest& request) {
  const detail::Lease* lease = nullptr;
  const auto publication = leased(request.lease, reader.id(), &lease);
  ByteCount bytes = 0;
  const auto digests = std::make_shared<std::vector<wire::BoxDigest>>();  // owners: the job and its completion
  std::vector<Source> located = locate(*publication, lease, request.parts, &bytes);
  submit(
      publication, bytes,
      [sources = std::move(located), digests] {
        for (const Source& source : sources) {
          const auto digest = memory::digest_box(source.box, source.placed, source.base, source.item_bytes);
          digests->push_back({digest.low, digest.high});
        }
      },
      [digests, keep = reader.shared_from_this(), number = request.request] {
        keep->send(wire::Digests{number, std::move(*digests)});
      });
}

}  // namespace shardwire
