// SPDX-License-Identifier: Apache-2.0
#include "session/source/publisher.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>

#include "session/path_choice.hpp"
#include "session/source/lease.hpp"
#include "support/checked.hpp"

namespace shardwire {

namespace {

[[noreturn]] void refuse_request(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

// So long that the loop looks at its sockets before a timer is due.
constexpr auto one_turn = std::chrono::milliseconds(1);

bool can_be_looked_at(const Fabrics& fabrics) {
  for (std::size_t i = 0; i < fabrics.size(); ++i) {
    const transport::Preference& preference = fabrics.row(i).preference;
    if (preference.map != 0 || preference.read != 0) return true;
  }
  return false;
}

Error withdrawn(const std::string& name) {
  return {ErrorCode::withdrawn, fmt::format("'{}' was withdrawn while it was being read", name)};
}

template <typename Request>
memory::DigestKind digest_kind_of(const Request& request) {
  return request.tree_digests ? memory::DigestKind::tree : memory::DigestKind::flat;
}

}  // namespace

wire::Failure failure_for(const Connection& reader, std::uint64_t request, const Error& error) {
  const auto& capabilities = reader.peer().capabilities;
  const bool knows = std::find(capabilities.begin(), capabilities.end(), "withdrawn") != capabilities.end();
  const bool recent = error.code() == ErrorCode::withdrawn || error.code() == ErrorCode::step_mismatch;
  return {request, recent && !knows ? ErrorCode::layout_mismatch : error.code(), error.what()};
}

Publisher::Publisher(const Fabrics& fabrics, MemoryTable& memory, AttachedSockets& sockets, memory::CopyQueue& copies,
                     Staging staging, std::string host)
    : fabrics_(fabrics),
      sockets_(sockets),
      host_(std::move(host)),
      digests_(copies),
      straight_(digests_),
      packed_(copies, staging.budget_bytes, staging.slot_bytes) {
  if (can_be_looked_at(fabrics)) words_.emplace([&memory](ByteCount bytes) { return memory.allocate_unlisted(bytes); });
}

Publisher::~Publisher() {
  readers_.clear();  // ends what is being sent
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

const std::shared_ptr<ReaderLoad>& Publisher::load_of(std::uint64_t reader) {
  auto& load = loads_[reader];
  if (!load) load = std::make_shared<ReaderLoad>();
  return load;
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
  if (const auto load = loads_.find(held.reader); load != loads_.end()) load->second->remove_lease(held);
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
  for (const auto& adopted : publication->adopted) adopted->withdraw();
  retiring_.erase(found);
  done({members.begin(), members.end()});
}

void Publisher::retire(const std::shared_ptr<Publication>& publication, Loop& loop, Duration timeout,
                       std::function<void(std::vector<int>)> done) {
  publication->withdrawn = true;
  if (live(publication->name) == publication) live_.erase(publication->name);
  if (const auto word = std::exchange(publication->word, std::nullopt)) words_->clear(*word);
  auto timer = std::make_unique<Timer>(loop);
  auto expired = [this, publication] {
    for (auto& [number, lease] : publication->leases) lease.revoked = true;
    for (Retiring& retiring : retiring_) {
      if (retiring.publication == publication) retiring.expired = true;
    }
    // Readers that hang would keep the memory in use for as long as they like.
    const Error why = withdrawn(publication->name);
    for (const std::uint64_t reader : straight_.readers_of(publication.get())) drop(reader, &why);
    packed_.pump();
    finish_retiring(publication);
  };
  // A lease that was given back by then may still lie in a socket: who gives it back does not wait for an answer.
  timer->start(timeout, [&again = *timer, expired = std::move(expired)] { again.start(one_turn, expired); });
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
  packed_.reader_gone(connection);
  drop(connection);
  std::vector<std::uint64_t> gone;
  for (const auto& [number, publication] : by_lease_) {
    if (publication->leases.at(number).reader == connection) gone.push_back(number);
  }
  for (const std::uint64_t lease : gone) release(lease);
  loads_.erase(connection);
  digests_.reader_gone(connection);
  packed_.pump();  // slots of payloads that were on their way to it are free again
}

void Publisher::drop(std::uint64_t reader, const Error* why) {
  auto found = readers_.extract(reader);
  if (found.empty()) return;
  for (auto& [fabric, channel] : found.mapped().channels) straight_.cut_off(std::move(channel.endpoint), why);
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

// --- one request ---

Publisher::Request::Request(Publisher& publisher, Connection& reader, std::uint64_t number, std::size_t parts)
    : publisher_(publisher),
      connection_(reader.shared_from_this()),
      number_(number),
      charge_(publisher.load_of(reader.id()), parts) {
}

std::uint64_t Publisher::Request::reader() const {
  return connection_->id();
}

const detail::Lease* Publisher::Request::read_under(std::uint64_t lease) {
  const detail::Lease* found = nullptr;
  publication_ = publisher_.leased(lease, reader(), &found);
  lease_ = lease;
  return found;
}

void Publisher::Request::read_while_live(const std::string& name, std::uint64_t generation) {
  publication_ = publisher_.live(name);
  if (!publication_ || publication_->generation != generation) throw withdrawn(name);
}

void Publisher::Request::check_readable() const {
  const detail::Lease* found = nullptr;
  if (lease_ != 0) {
    publisher_.leased(lease_, reader(), &found);
  } else if (publisher_.live(publication_->name) != publication_) {
    throw withdrawn(publication_->name);
  }
}

transport::Endpoint* Publisher::Request::endpoint() const {
  const auto found = publisher_.readers_.find(reader());
  return found == publisher_.readers_.end() ? nullptr : found->second.messages;
}

void Publisher::Request::begin_reading() {
  ++publication_->jobs;
}

void Publisher::Request::end_reading() {
  --publication_->jobs;
  publisher_.finish_retiring(publication_);
}

void Publisher::Request::fail(const Error& error) {
  connection_->send(failure_for(*connection_, number_, error));
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
  ReaderLoad& load = *load_of(reader.id());
  std::size_t boxes = 0;
  for (const wire::TensorRange& range : request.ranges) boxes += range.boxes.size();
  for (const auto& tensor : request.ranges) {
    // Who has mapped it may read without another word from here.
    if (tensor.tensor < publication->tensors.size()) publication->require_still_there(tensor.tensor);
  }
  load.check_lease(0, boxes);
  detail::Lease lease{reader.id(), reader.peer().rank, false, leased_tensors(request, *publication->described.manifest),
                      boxes};
  load.add_lease(lease);
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
  bound.max_pack_bytes = packed_.slot_bytes();
  std::map<const detail::RegisteredMemory*, std::uint32_t> regions;
  std::map<std::uint64_t, std::uint32_t> allocations;  // regions on devices, by number
  for (const detail::Lease::Tensor& leased : lease->tensors) {
    const Publication::Tensor& tensor = publication->tensors.at(leased.id);
    publication->require_still_there(leased.id);
    wire::TensorHandle handle{leased.id, wire::no_region, 0, tensor.strides};
    if (tensor.place && !tensor.registered) {
      const memory::DeviceAllocation& at = *tensor.place;
      const auto [entry, fresh] = allocations.emplace(at.number, static_cast<std::uint32_t>(bound.regions.size()));
      if (fresh) {
        bound.regions.push_back(
            handle_of({const_cast<std::byte*>(at.address), at.bytes, {MemoryKind::cuda, at.device}}));
      }
      handle.region = entry->second;
      handle.offset_bytes = static_cast<ByteCount>(tensor.data - at.address);
    }
    if (tensor.registered) {
      const auto [entry, fresh] =
          regions.emplace(tensor.registered.get(), static_cast<std::uint32_t>(bound.regions.size()));
      if (fresh) bound.regions.push_back(show(reader, request.request, *tensor.registered, fabrics));
      handle.region = entry->second;
      handle.offset_bytes = static_cast<ByteCount>(tensor.data - tensor.registered->memory().address);
      if (!tensor.registered->holds(handle.offset_bytes, tensor.bytes)) {
        refuse_request(fmt::format("the memory of tensor {} of '{}' was discarded", leased.id, publication->name));
      }
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
    if (channel != known->second.channels.end()) {
      if (channel->second.endpoint.get() == known->second.messages) known->second.messages = nullptr;
      straight_.cut_off(std::move(known->second.channels.extract(channel).mapped().endpoint), nullptr);
    }
  }
  auto sockets =
      wanted.sockets == 0 ? std::vector<support::Descriptor>{} : sockets_.take(reader.peer(), wanted.sockets);
  if (wanted.sockets != 0 && sockets.empty()) {
    throw Error(ErrorCode::peer_lost,
                fmt::format("the sockets for fabric {} are not there, or not any more", wanted.name));
  }
  auto endpoint = fabrics_[fabric].connect(
      {.address = wanted.address, .same_host = reader.peer().host == host_, .sockets = std::move(sockets)});
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
  wire::RegionHandle handle = handle_of(memory.memory());
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
    static_assert(transport::max_key_descriptors <= wire::max_descriptors_per_message);  // all with one message
    key.descriptors = static_cast<std::uint8_t>(descriptors.size());
    reader.send(wire::Descriptors{request, key.descriptors}, descriptors);
  }
  handle.keys.push_back(std::move(key));
}

std::optional<wire::Bound::Word> Publisher::show_word(Connection& reader, std::uint64_t request,
                                                      const Publication& publication,
                                                      std::span<const std::size_t> fabrics) {
  if (!publication.word) return std::nullopt;
  wire::Bound::Word word{show(reader, request, words_->memory(), fabrics), *publication.word};
  if (word.region.keys.empty()) return std::nullopt;
  return word;
}

std::vector<move::SourceBox> Publisher::locate(Publication& publication, const detail::Lease* lease,
                                               const std::vector<wire::RequestedBox>& parts) {
  ByteCount bytes = 0;
  std::vector<move::SourceBox> sources;
  sources.reserve(parts.size());
  std::optional<std::uint32_t> looked_at;
  for (const wire::RequestedBox& part : parts) {
    if (lease == nullptr) {
      if (part.tensor >= publication.tensors.size()) refuse_request(fmt::format("there is no tensor {}", part.tensor));
    } else if (!covers(*lease, part)) {
      refuse_request(fmt::format("tensor {} {} is not under the lease", part.tensor, to_string(part.box)));
    }
    if (looked_at != part.tensor) publication.require_still_there(part.tensor);
    looked_at = part.tensor;
    const TensorSpec& spec = publication.described.manifest->tensors.at(part.tensor).spec;
    const PlacedBox* holder = publication.placed(part.tensor).around(part.box);
    if (holder == nullptr) {
      refuse_request(fmt::format("{} {} is not held here", to_string(spec.key), to_string(part.box)));
    }
    const ByteCount item_bytes = item_size(spec.dtype);
    bytes = support::add(bytes, static_cast<ByteCount>(part.box.volume()) * item_bytes, "the size of a request");
    const Publication::Tensor& tensor = publication.tensors[part.tensor];
    sources.push_back({part.box, *holder, tensor.data, item_bytes, tensor.device()});
  }
  return sources;
}

void Publisher::serve_one(Connection& reader, const wire::PackRequest& request) {
  auto served = std::make_shared<Request>(*this, reader, request.request, request.parts.size());  // owners: see move
  if (request.each && request.lease == 0) refuse_request("a request for one message per part came without a lease");
  const detail::Lease* lease = nullptr;
  if (request.lease != 0) {
    lease = served->read_under(request.lease);
  } else {
    served->read_while_live(request.publication, request.generation);
  }
  auto sources = locate(served->published(), lease, request.parts);
  if (served->endpoint() == nullptr)
    refuse_request("a pack request came before bind, or before one with a fabric that has messages");
  const bool on_device = std::ranges::any_of(sources, [](const auto& one) { return one.device != memory::on_host; });
  if (on_device && (request.each || request.gathered)) {
    throw Error(ErrorCode::unsupported, "memory of a device is not sent straight from where it lies");
  }
  const auto digest = request.digest ? std::optional(digest_kind_of(request)) : std::nullopt;
  if (request.each) return straight_.send(std::move(served), std::move(sources), digest);
  if (request.gathered) return straight_.send_gathered(std::move(served), std::move(sources), digest);
  packed_.send(std::move(served), std::move(sources), digest);
}

void Publisher::serve_one(Connection& reader, const wire::DigestRequest& request) {
  auto served = std::make_shared<Request>(*this, reader, request.request, request.parts.size());  // owners: see move
  const detail::Lease* lease = served->read_under(request.lease);
  auto sources = locate(served->published(), lease, request.parts);
  auto answer = [keep = reader.shared_from_this(), number = request.request](std::vector<wire::BoxDigest> digests) {
    keep->send(wire::Digests{number, std::move(digests)});
  };
  digests_.take(std::move(served), std::move(sources), digest_kind_of(request), std::move(answer));
}

}  // namespace shardwire
