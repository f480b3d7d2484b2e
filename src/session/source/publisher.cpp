// SPDX-License-Identifier: Apache-2.0
#include "session/source/publisher.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "session/path_choice.hpp"
#include "support/checked.hpp"
#include "wire/payload_header.hpp"

namespace shardwire {

namespace {

[[noreturn]] void refuse_request(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

// Of one reader. Its own restores need a few leases, and some requests in flight for each; what is beyond is a reader that
// would keep this member from serving others.
constexpr std::size_t max_leases = 4096;
constexpr std::size_t max_leased_tensors = 1u << 20;
constexpr std::size_t max_leased_boxes = 1u << 17;
constexpr std::size_t max_requests = 4096;
constexpr std::size_t max_queued_parts = 1u << 18;
constexpr std::size_t max_digesting = 2;
constexpr ByteCount max_digested_at_once = 32u << 20;  // then it is others' turn

// Copied by the time a worker would have woken up.
constexpr ByteCount max_copied_here = 128u << 10;

std::size_t mapping_fabric(const Fabrics& fabrics) {
  std::size_t fabric = 0;
  while (fabric < fabrics.size() && fabrics.row(fabric).preference.map == 0) ++fabric;
  return fabric;
}

Error withdrawn(const std::string& name) {
  return {ErrorCode::withdrawn, fmt::format("'{}' was withdrawn while it was being read", name)};
}

// Several slots, also within a small budget: readers that hang keep some of them.
ByteCount slot_bytes_within(ByteCount budget_bytes, ByteCount slot_bytes) {
  constexpr ByteCount enough_slots = 4;
  constexpr ByteCount least = 64u << 10;  // below that, messages cost more than what is in them
  return std::min(slot_bytes, std::max(budget_bytes / enough_slots, least));
}

bool covers(const detail::Lease& lease, const wire::RequestedBox& part) {
  const auto found = std::lower_bound(lease.tensors.begin(), lease.tensors.end(), part.tensor,
                                      [](const auto& one, std::uint32_t id) { return one.id < id; });
  if (found == lease.tensors.end() || found->id != part.tensor) return false;
  return found->whole || found->boxes.around(part.box) != nullptr;
}

// Boxes that overlap are refused: only those that do not are found by one element, whatever their number.
PlacedBoxes indexed(std::vector<Box> boxes, const TensorSpec& spec) {
  std::vector<PlacedBox> placed;
  placed.reserve(boxes.size());
  for (const Box& box : boxes) {
    if (box.dims() != spec.shape.size())
      refuse_request(fmt::format("{} has boxes of {} dims", to_string(spec.key), box.dims()));
    placed.push_back({box, 0, {}});
  }
  if (find_overlap(boxes)) refuse_request(fmt::format("boxes of {} overlap in a lease", to_string(spec.key)));
  return PlacedBoxes(std::move(placed));
}

std::vector<detail::Lease::Tensor> leased_tensors(const wire::Lease& request, const Manifest& manifest) {
  std::map<std::uint32_t, std::vector<Box>> boxes;  // none: the whole tensor
  for (const wire::TensorRange& range : request.ranges) {
    if (range.tensor >= manifest.tensors.size()) {
      refuse_request(fmt::format("'{}' has no tensor {}", request.publication, range.tensor));
    }
    const auto [entry, fresh] = boxes.try_emplace(range.tensor);
    if (range.boxes.empty() || (!fresh && entry->second.empty())) {
      entry->second.clear();
    } else {
      entry->second.insert(entry->second.end(), range.boxes.begin(), range.boxes.end());
    }
  }
  std::vector<detail::Lease::Tensor> tensors;
  tensors.reserve(boxes.size());
  for (auto& [id, list] : boxes) {
    const bool whole = list.empty();
    tensors.push_back({id, whole, whole ? PlacedBoxes() : indexed(std::move(list), manifest.tensors[id].spec)});
  }
  return tensors;
}

}  // namespace

wire::Failure failure_for(const Connection& reader, std::uint64_t request, const Error& error) {
  const auto& capabilities = reader.peer().capabilities;
  const bool knows = std::find(capabilities.begin(), capabilities.end(), "withdrawn") != capabilities.end();
  const bool recent = error.code() == ErrorCode::withdrawn || error.code() == ErrorCode::step_mismatch;
  return {request, recent && !knows ? ErrorCode::layout_mismatch : error.code(), error.what()};
}

Publisher::Publisher(const Fabrics& fabrics, AttachedSockets& sockets, memory::Copier& copier, Staging staging,
                     std::string host)
    : fabrics_(fabrics),
      sockets_(sockets),
      copier_(copier),
      host_(std::move(host)),
      words_fabric_(mapping_fabric(fabrics)),
      pool_(staging.budget_bytes, slot_bytes_within(staging.budget_bytes, staging.slot_bytes)) {
  if (words_fabric_ < fabrics_.size()) words_.emplace(fabrics_[words_fabric_]);
}

Publisher::~Publisher() {
  for (const auto& [reader, load] : loads_) load->digests.clear();  // each holds the load
  readers_.clear();                                                 // ends what is being sent
  for (const Retiring& retiring : retiring_) retiring.done({});
}

void Publisher::add(std::shared_ptr<Publication> publication) {
  const auto [entry, added] = live_.emplace(publication->name, publication);
  if (!added)
    refuse_request(fmt::format("'{}' is already published by this member; retire it first", publication->name));
  if (words_) entry->second->word = words_->set(entry->second->generation);
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

Publisher::Load& Publisher::load_of(std::uint64_t reader) {
  auto& load = loads_[reader];
  if (!load) load = std::make_shared<Load>();
  return *load;
}

std::shared_ptr<Publisher::Charge> Publisher::charge(std::uint64_t reader, std::size_t parts) {
  load_of(reader);
  return std::make_shared<Charge>(loads_.at(reader), parts);
}

Publisher::Charge::Charge(std::shared_ptr<Load> load, std::size_t parts) : load_(std::move(load)), parts_(parts) {
  if (load_->requests >= max_requests || load_->parts + parts_ > max_queued_parts) {
    load_.reset();
    throw Error(ErrorCode::out_of_resources,
                fmt::format("this reader asks for too much at once: {} requests and {} boxes are the limits",
                            max_requests, max_queued_parts));
  }
  ++load_->requests;
  load_->parts += parts_;
}

Publisher::Charge::~Charge() {
  if (!load_) return;
  --load_->requests;
  load_->parts -= parts_;
}

std::uint64_t Publisher::lease_own(Publication& publication) {
  const auto found = live(publication.name);
  if (found.get() != &publication) refuse_request("the publication has been withdrawn");
  return add_lease(found, {});
}

bool Publisher::release(std::uint64_t lease) {
  const auto found = by_lease_.find(lease);
  if (found == by_lease_.end()) return false;
  const std::shared_ptr<Publication> publication = found->second;
  by_lease_.erase(found);
  const detail::Lease& held = publication->leases.at(lease);
  const bool intact = !held.revoked;
  if (const auto load = loads_.find(held.reader); load != loads_.end()) {
    --load->second->leases;
    load->second->tensors -= held.tensors.size();
    load->second->boxes -= held.boxes;
  }
  publication->leases.erase(lease);
  finish_retiring(publication);
  return intact;
}

void Publisher::finish_retiring(const std::shared_ptr<Publication>& publication) {
  const auto found = std::find_if(retiring_.begin(), retiring_.end(),
                                  [&](const Retiring& retiring) { return retiring.publication == publication; });
  if (found == retiring_.end() || publication->jobs > 0) return;
  if (!publication->leases.empty() && !found->expired) return;
  std::set<int> members;
  for (const auto& [number, lease] : publication->leases) members.insert(lease.member);
  const auto done = std::move(found->done);
  if (publication->adopted) publication->adopted->withdraw();
  retiring_.erase(found);
  done({members.begin(), members.end()});
}

void Publisher::retire(const std::shared_ptr<Publication>& publication, Loop& loop, Duration timeout,
                       std::function<void(std::vector<int>)> done) {
  publication->withdrawn = true;
  if (live(publication->name) == publication) live_.erase(publication->name);
  if (const auto word = std::exchange(publication->word, std::nullopt)) words_->clear(*word);
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
    finish_retiring(publication);
  });
  retiring_.push_back({publication, std::move(timer), std::move(done)});
  finish_retiring(publication);
}

void Publisher::replace(const std::shared_ptr<Publication>& old, std::shared_ptr<Publication> fresh, Loop& loop,
                        Duration timeout, std::function<void(std::vector<int>)> done) {
  if (live(old->name) != old) refuse_request(fmt::format("'{}' has been withdrawn: publish it anew", old->name));
  live_.erase(old->name);
  add(std::move(fresh));
  retire(old, loop, timeout, std::move(done));
}

void Publisher::reader_closed(std::uint64_t connection) {
  std::erase_if(queue_, [&](const Packing& packing) { return packing.reader->id() == connection; });
  drop(connection);
  std::vector<std::uint64_t> gone;
  for (const auto& [number, publication] : by_lease_) {
    if (publication->leases.at(number).reader == connection) gone.push_back(number);
  }
  for (const std::uint64_t lease : gone) release(lease);
  if (const auto load = loads_.extract(connection)) std::exchange(load.mapped()->digests, {});
  pump();  // slots of payloads that were on their way to it are free again
}

transport::Endpoint* Publisher::messages_to(std::uint64_t reader) const {
  const auto found = readers_.find(reader);
  return found == readers_.end() ? nullptr : found->second.messages;
}

// Another endpoint takes its place.
void Publisher::close_channel(Reader& reader, std::size_t fabric) {
  const auto gone = reader.channels.extract(fabric);  // completions of what was under way never run
  if (gone.empty() || gone.mapped().endpoint.get() != reader.messages) return;
  reader.messages = nullptr;
  for (const auto& [number, sending] : std::exchange(reader.straight, {})) {
    sending.publication->jobs -= sending.messages;
    finish_retiring(sending.publication);
  }
}

void Publisher::drop(std::uint64_t reader, const Error* why) {
  auto found = readers_.extract(reader);
  if (found.empty()) return;
  found.mapped().channels.clear();  // completions of what was under way never run
  for (const auto& [number, sending] : found.mapped().straight) {
    if (why != nullptr) sending.connection->send(failure_for(*sending.connection, number, *why));
    sending.publication->jobs -= sending.messages;
    finish_retiring(sending.publication);
  }
}

void Publisher::submit(const std::shared_ptr<Publication>& publication, ByteCount bytes, memory::Copier::Job job,
                       std::function<void()> done) {
  if (bytes <= max_copied_here) {
    job();
    return done();
  }
  copier_.submit(std::move(job), [this, publication, done = std::move(done)](const std::exception_ptr&) {
    --publication->jobs;
    done();
    finish_retiring(publication);
  });
  ++publication->jobs;  // it ends inside poll(), not before this
}

std::shared_ptr<detail::PublicationState> Publisher::leased(std::uint64_t lease, std::uint64_t reader,
                                                            const detail::Lease** found) {
  const auto entry = by_lease_.find(lease);
  if (entry == by_lease_.end()) refuse_request(fmt::format("there is no lease {}", lease));
  const detail::Lease& held = entry->second->leases.at(lease);
  if (held.reader != reader) refuse_request(fmt::format("lease {} is another reader's", lease));
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
    throw Error(ErrorCode::withdrawn, fmt::format("'{}' generation {} is not published here any more",
                                                  request.publication, request.generation));
  }
  Load& load = load_of(reader.id());
  std::size_t boxes = 0;
  for (const wire::TensorRange& range : request.ranges) boxes += range.boxes.size();
  const auto refuse_more = [&load] {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("this reader holds {} leases on {} tensors and {} boxes, and may hold {} on {} and {}",
                            load.leases, load.tensors, load.boxes, max_leases, max_leased_tensors, max_leased_boxes));
  };
  if (load.leases >= max_leases || load.boxes + boxes > max_leased_boxes) refuse_more();
  detail::Lease lease{reader.id(), reader.peer().rank, false, leased_tensors(request, *publication->described.manifest),
                      boxes};
  if (load.tensors + lease.tensors.size() > max_leased_tensors) refuse_more();
  ++load.leases;
  load.tensors += lease.tensors.size();
  load.boxes += boxes;
  const auto number = add_lease(publication, std::move(lease));
  reader.send(wire::Leased{request.request, number});
}

void Publisher::serve_one(Connection& reader, const wire::Release& request) {
  const auto found = by_lease_.find(request.lease);
  if (found == by_lease_.end() || found->second->leases.at(request.lease).reader != reader.id()) {
    refuse_request(fmt::format("there is no lease {} of this reader", request.lease));
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
  const std::vector<std::size_t> fabrics = connect(reader, request);
  wire::Bound bound;
  bound.request = request.request;
  for (const std::size_t fabric : fabrics) bound.addresses.push_back(fabrics_[fabric].address());
  bound.max_pack_bytes = pool_.slot_bytes();
  std::map<const detail::RegisteredMemory*, std::uint32_t> regions;
  for (const detail::Lease::Tensor& leased : lease->tensors) {
    const Publication::Tensor& tensor = publication->tensors.at(leased.id);
    wire::TensorHandle handle{leased.id, wire::no_region, 0, tensor.strides};
    if (tensor.registered) {
      const auto [entry, fresh] =
          regions.emplace(tensor.registered.get(), static_cast<std::uint32_t>(bound.regions.size()));
      if (fresh) bound.regions.push_back(show(reader, request.request, *tensor.registered, fabrics));
      handle.region = entry->second;
      handle.offset_bytes = static_cast<ByteCount>(tensor.data - tensor.registered->memory().address);
    }
    bound.tensors.push_back(handle);
  }
  bound.word = show_word(reader, request.request, *publication, fabrics);
  reader.send(bound);
}

std::vector<std::size_t> Publisher::connect(Connection& reader, const wire::Bind& request) {
  std::vector<std::size_t> fabrics;
  for (const wire::FabricHandle& wanted : request.fabrics) {
    const auto found = fabrics_.find(wanted.name, wanted.domain);
    if (!found) {
      throw Error(ErrorCode::unsupported, fmt::format("the reader wants to use fabric {} ({}), which is not open here",
                                                      wanted.name, wanted.domain));
    }
    connect(reader, *found, wanted);
    fabrics.push_back(*found);
  }
  return fabrics;
}

void Publisher::connect(Connection& reader, std::size_t fabric, const wire::FabricHandle& wanted) {
  const auto known = readers_.find(reader.id());
  if (known != readers_.end()) {
    const auto channel = known->second.channels.find(fabric);
    if (channel != known->second.channels.end() && channel->second.token == wanted.sockets) {
      if (!channel->second.endpoint->failed()) return;
      if (wanted.sockets != 0) throw Error(ErrorCode::peer_lost, "the connection for payloads has ended");
    }
    close_channel(known->second, fabric);
  }
  auto sockets = wanted.sockets == 0 ? std::vector<support::Descriptor>{} : sockets_.take(reader.peer(), wanted.sockets);
  if (wanted.sockets != 0 && sockets.empty()) {
    throw Error(ErrorCode::peer_lost, fmt::format("the sockets for fabric {} are not there, or not any more", wanted.name));
  }
  auto endpoint = fabrics_[fabric].connect({.address = wanted.address,
                                            .same_host = reader.peer().host == host_,
                                            .sockets = std::move(sockets)});
  Reader& entry = readers_[reader.id()];
  entry.channels[fabric] = {wanted.sockets, std::move(endpoint)};
  int best = no_path;
  for (const auto& [index, channel] : entry.channels) {
    const int rank = fabrics_.row(index).preference.message;
    if (rank == 0 || rank >= best || !channel.endpoint->path({}).message) continue;
    best = rank;
    entry.messages = channel.endpoint.get();
  }
}

wire::RegionHandle Publisher::show(Connection& reader, std::uint64_t request, const detail::RegisteredMemory& memory,
                                   std::span<const std::size_t> fabrics) {
  wire::RegionHandle handle{memory.memory().bytes, {}};
  for (std::size_t i = 0; i < fabrics.size(); ++i) {
    const auto region = memory.region(fabrics[i]);
    if (region) show(reader, request, *region, i, handle);
  }
  return handle;
}

void Publisher::show(Connection& reader, std::uint64_t request, const transport::Region& region, std::size_t fabric,
                     wire::RegionHandle& handle) {
  wire::RegionKey key{static_cast<std::uint8_t>(fabric), region.key(), 0};
  if (key.key.empty()) return;
  if (const std::vector<int> descriptors = region.descriptors(); !descriptors.empty()) {
    if (!reader.is_local()) refuse_request("descriptors are handed over local connections only");
    key.descriptors = static_cast<std::uint8_t>(descriptors.size());
    reader.send(wire::Descriptors{request, key.descriptors}, descriptors);
  }
  handle.keys.push_back(std::move(key));
}

std::optional<wire::Bound::Word> Publisher::show_word(Connection& reader, std::uint64_t request,
                                                      const Publication& publication,
                                                      std::span<const std::size_t> fabrics) {
  if (!publication.word) return std::nullopt;
  const auto fabric = std::ranges::find(fabrics, words_fabric_);
  if (fabric == fabrics.end()) return std::nullopt;
  const transport::Region& region = words_->region();
  wire::Bound::Word word{{region.memory().bytes, {}}, *publication.word};
  show(reader, request, region, static_cast<std::size_t>(fabric - fabrics.begin()), word.region);
  return word;
}

std::vector<Publisher::Source> Publisher::locate(Publication& publication, const detail::Lease* lease,
                                                 const std::vector<wire::RequestedBox>& parts, ByteCount* bytes) {
  std::vector<Source> sources;
  sources.reserve(parts.size());
  for (const wire::RequestedBox& part : parts) {
    if (lease == nullptr) {
      if (part.tensor >= publication.tensors.size()) refuse_request(fmt::format("there is no tensor {}", part.tensor));
    } else if (!covers(*lease, part)) {
      refuse_request(fmt::format("tensor {} {} is not under the lease", part.tensor, to_string(part.box)));
    }
    const TensorSpec& spec = publication.described.manifest->tensors.at(part.tensor).spec;
    const PlacedBox* holder = publication.placed(part.tensor).around(part.box);
    if (holder == nullptr) {
      refuse_request(fmt::format("{} {} is not held here", to_string(spec.key), to_string(part.box)));
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
                  .digest = request.digest,
                  .charge = charge(reader.id(), request.parts.size())};
  if (request.each && request.lease == 0) refuse_request("a request for one message per part came without a lease");
  const auto publication = readable(packing, &lease);
  packing.sources = locate(*publication, lease, request.parts, &packing.bytes);
  if (messages_to(reader.id()) == nullptr) {
    refuse_request("a pack request came before bind, or before one with a fabric that has messages");
  }
  if (request.each) return send_straight(publication, packing);
  if (packing.bytes > pool_.slot_bytes()) {
    refuse_request(
        fmt::format("a request for {} bytes is larger than a slot of {}", packing.bytes, pool_.slot_bytes()));
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
    return reader->send(failure_for(*reader, number, error));
  }
  struct Job {
    move::Slot slot;
    std::shared_ptr<std::size_t> slots;  // of the reader; owners: see Reader
    std::vector<Source> sources;
    std::optional<wire::BoxDigest> digest;
    std::shared_ptr<Charge> charge;  // owners: see Charge

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
  job->charge = std::move(packing.charge);
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
        transport::Endpoint* const to = messages_to(reader->id());
        if (to == nullptr) {  // gone meanwhile: its slot is somebody else's turn
          job->give_back();
          return pump();
        }
        const wire::EncodedHeader header({.request = number, .part = 0, .digest = job->digest});
        to->send(header.bytes(),
                                     transport::ConstMemory(transport::host_memory(job->slot.bytes())).part(0, bytes),
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
  straight->charge = packing.charge;
  for (const Source& source : packing.sources) {
    const memory::StridedCopy copy(source.box, source.placed, memory::packed(source.box), source.item_bytes);
    if (copy.runs() != 1) refuse_request(fmt::format("{} does not lie in one piece here", to_string(source.box)));
    straight->parts.push_back({source.base + copy.source_span().first, copy.bytes(), {}});
  }
  if (!packing.digest) return post(publication, *straight);
  Digesting wanted{.reader = packing.reader,
                   .number = packing.number,
                   .lease = packing.lease,
                   .sources = packing.sources,
                   .bytes = packing.bytes,
                   .charge = packing.charge,
                   .done = {}};
  wanted.done = [this, publication, straight](std::vector<wire::BoxDigest> digests) {
    straight->digests = std::move(digests);
    post(publication, *straight);
  };
  take_digests(std::move(wanted));
}

void Publisher::take_digests(Digesting wanted) {
  Load& load = load_of(wanted.reader->id());
  if (wanted.bytes > max_copied_here && load.digesting >= max_digesting) {
    return load.digests.push_back(std::move(wanted));
  }
  const auto begun = std::make_shared<Digesting>(std::move(wanted));  // owners: the jobs and what follows them
  begun->digests.reserve(begun->sources.size());
  ++load.digesting;
  begun->slot =
      std::shared_ptr<void>(nullptr, [counted = loads_.at(begun->reader->id())](void*) { --counted->digesting; });
  digest_next(begun);
}

// The lease may have gone since the last job, or while the request waited.
void Publisher::digest_next(const std::shared_ptr<Digesting>& wanted) {
  const detail::Lease* lease = nullptr;
  const auto publication = leased(wanted->lease, wanted->reader->id(), &lease);
  const std::size_t first = wanted->digests.size();
  std::size_t end = first;
  ByteCount bytes = 0;
  while (end < wanted->sources.size() && bytes < max_digested_at_once) {
    const Source& source = wanted->sources[end++];
    bytes += static_cast<ByteCount>(source.box.volume()) * source.item_bytes;
  }
  submit(
      publication, bytes,
      [wanted, first, end] {
        for (std::size_t i = first; i < end; ++i) {
          const Source& source = wanted->sources[i];
          const auto digest = memory::digest_box(source.box, source.placed, source.base, source.item_bytes);
          wanted->digests.push_back({digest.low, digest.high});
        }
      },
      [this, wanted, end] { digested(wanted, end); });
}

void Publisher::digested(const std::shared_ptr<Digesting>& wanted, std::size_t end) {
  try {
    if (wanted->digests.size() != end) throw Error(ErrorCode::internal, "a digest could not be taken");
    if (end < wanted->sources.size()) return digest_next(wanted);
    wanted->done(std::move(wanted->digests));
  } catch (const Error& error) {
    wanted->reader->send(failure_for(*wanted->reader, wanted->number, error));
  } catch (const std::exception& error) {  // no memory
    wanted->reader->send(wire::Failure{wanted->number, ErrorCode::out_of_resources, error.what()});
  }
  wanted->slot.reset();
  digest_waiting(wanted->reader->id());
}

void Publisher::digest_waiting(std::uint64_t reader) {
  const auto found = loads_.find(reader);
  if (found == loads_.end()) return;
  Load& load = *found->second;
  while (!load.digests.empty() && load.digesting < max_digesting) {
    Digesting next = std::move(load.digests.front());
    load.digests.pop_front();
    const auto connection = next.reader;
    const std::uint64_t number = next.number;
    try {
      take_digests(std::move(next));
    } catch (const Error& error) {
      connection->send(failure_for(*connection, number, error));
    }
  }
}

void Publisher::post(const std::shared_ptr<Publication>& publication, const Straight& straight) {
  const detail::Lease* lease = nullptr;
  try {  // again: the lease may have been revoked while digests were taken
    leased(straight.lease, straight.reader->id(), &lease);
  } catch (const Error& error) {
    return straight.reader->send(failure_for(*straight.reader, straight.number, error));
  }
  for (std::size_t i = 0; i < straight.parts.size(); ++i) {
    transport::Endpoint* const to = messages_to(straight.reader->id());
    if (to == nullptr) return;
    wire::PayloadHeader header{.request = straight.number, .part = static_cast<std::uint32_t>(i)};
    if (!straight.digests.empty()) header.digest = straight.digests[i];
    Sending& sending = readers_.at(straight.reader->id()).straight[straight.number];
    sending.publication = publication;
    sending.connection = straight.reader;
    ++sending.messages;
    ++publication->jobs;
    to->send(
        wire::EncodedHeader(header).bytes(), straight.parts[i],
        [this, publication, connection = straight.reader, number = straight.number](const transport::Outcome& outcome) {
          const auto reader = readers_.find(connection->id());
          if (reader == readers_.end()) return;  // drop() has counted it
          const auto sent = reader->second.straight.find(number);
          if (sent == reader->second.straight.end()) return;  // of an endpoint that is gone
          if (outcome && !std::exchange(sent->second.failed, true)) {
            connection->send(wire::Failure{number, outcome->code, outcome->message});
          }
          if (--sent->second.messages == 0) reader->second.straight.erase(sent);
          --publication->jobs;
          finish_retiring(publication);
        });
  }
}

void Publisher::serve_one(Connection& reader, const wire::DigestRequest& request) {
  const detail::Lease* lease = nullptr;
  const auto publication = leased(request.lease, reader.id(), &lease);
  Digesting wanted{.reader = reader.shared_from_this(),
                   .number = request.request,
                   .lease = request.lease,
                   .sources = {},
                   .charge = charge(reader.id(), request.parts.size()),
                   .done = {}};
  wanted.sources = locate(*publication, lease, request.parts, &wanted.bytes);
  wanted.done = [keep = wanted.reader, number = wanted.number](std::vector<wire::BoxDigest> digests) {
    keep->send(wire::Digests{number, std::move(digests)});
  };
  take_digests(std::move(wanted));
}

}  // namespace shardwire
