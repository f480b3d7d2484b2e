// SPDX-License-Identifier: Apache-2.0
#include "serve/serving.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "serve/bound_reply.hpp"
#include "serve/refusal.hpp"

namespace shardwire {

Serving::Serving(Publications& publications, Leases& leases, const Fabrics& fabrics, AttachedSockets& sockets,
                 memory::CopyQueue& copies, Staging staging, Readers::Own own)
    : publications_(publications),
      leases_(leases),
      fabrics_(fabrics),
      digests_(copies),
      zcopy_(digests_),
      packed_(copies, staging.budget_bytes, staging.slot_bytes),
      readers_(fabrics, sockets, zcopy_, std::move(own)) {
}

void Serving::serve(Connection& reader, const wire::Message& message) {
  std::visit([&](const auto& request) { serve_one(reader, request); }, message);
}

void Serving::reader_closed(std::uint64_t connection) {
  packed_.reader_gone(connection);
  readers_.remove(connection);
  leases_.release_all(connection);
  digests_.reader_gone(connection);
  packed_.pump();  // it frees slots of payloads for the closed reader
}

void Serving::abort_reads(const detail::PublicationState& publication) {
  const Error why = withdrawn_while_read(publication.name);
  for (const std::uint64_t reader : zcopy_.readers_of(&publication)) readers_.disconnect(reader, &why);
  packed_.pump();
}

// --- manifests and values: an empty reply says that they are gone; the reader then asks another source ---

void Serving::serve_one(Connection& reader, const wire::ManifestRequest& request) {
  const auto publication = publications_.with_manifest(request.digest);
  if (!publication) return reader.send(wire::ManifestReply{request.digest, {}});
  reader.send(wire::ManifestReply{request.digest, publication->described.encoded_manifest});
}

void Serving::serve_one(Connection& reader, const wire::ValuesRequest& request) {
  const auto publication = publications_.with_values(request.digest);
  if (!publication) return reader.send(wire::ValuesReply{request.digest, {}});
  reader.send(wire::ValuesReply{request.digest, publication->described.encoded_values});
}

// --- leases ---

void Serving::serve_one(Connection& reader, const wire::Lease& request) {
  const auto publication = publications_.live(request.publication, request.generation);
  if (!publication) {
    throw Error(ErrorCode::withdrawn, fmt::format("'{}' generation {} is not published here any more",
                                                  request.publication, request.generation));
  }
  ReaderLoad::Amount amount{.leases = 1};
  for (const wire::TensorRange& range : request.ranges) {
    amount.boxes += range.boxes.size();
    // A reader that mapped this memory can read it without asking again.
    if (range.tensor < publication->tensors.size()) publication->require_still_there(range.tensor);
  }
  readers_.check(reader.id(), amount);
  Lease lease{.reader = reader.id(), .member = reader.peer().rank};
  lease.tensors = leased_tensors(request, *publication->described.manifest);
  amount.tensors = lease.tensors.size();
  lease.charge = readers_.charge(reader.id(), amount);
  reader.send(wire::Leased{request.request, leases_.grant(publication, std::move(lease)), publication->step});
}

void Serving::serve_one(Connection& reader, const wire::Release& request) {
  if (!leases_.holds(reader.id(), request.lease)) {
    refuse_request(fmt::format("there is no lease {} of this reader", request.lease));
  }
  reader.send(wire::Released{request.request, leases_.release(request.lease)});
}

void Serving::serve_one(Connection& reader, const wire::Confirm& request) {
  const bool live = publications_.live(request.publication, request.generation) != nullptr;
  reader.send(wire::Released{request.request, live});
}

// --- memory and payloads ---

void Serving::serve_one(Connection& reader, const wire::Bind& request) {
  const Leases::Held held = leases_.held(request.lease, reader.id());
  const std::vector<std::size_t> fabrics = readers_.connect(reader.id(), reader.peer(), request.fabrics);
  BoundReply reply(reader, request.request, fabrics);
  for (const std::size_t fabric : fabrics) reply.add_address(fabrics_[fabric].address());
  for (const Lease::Tensor& tensor : held.lease->tensors) reply.add_tensor(*held.publication, tensor.id);
  if (held.publication->word) reply.add_word(publications_.words(), *held.publication->word);
  reply.send(packed_.slot_bytes(), held.publication->digests.has_value());
}

std::shared_ptr<ServedRead> Serving::make_read(Connection& reader, std::uint64_t number, std::size_t parts) {
  return std::make_shared<ServedRead>(publications_, leases_, readers_, reader, number, parts);  // owners: see move
}

void Serving::serve_one(Connection& reader, const wire::PackRequest& request) {
  auto read = make_read(reader, request.request, request.parts.size());
  if (request.each && request.lease == 0) refuse_request("a request for one message per part came without a lease");
  const Lease* lease = nullptr;
  if (request.lease != 0) {
    lease = read->read_under(request.lease);
  } else {
    read->read_while_live(request.publication, request.generation);
  }
  auto boxes = read->locate(lease, request.parts);
  if (read->endpoint() == nullptr) {
    refuse_request("a pack request came before bind, or before one with a fabric that has messages");
  }
  const bool on_device = std::ranges::any_of(boxes, [](const auto& one) { return one.device != memory::on_host; });
  if (on_device && (request.each || request.gathered)) {
    throw Error(ErrorCode::unsupported, "memory of a device is not sent straight from where it lies");
  }
  check_blocks(read, lease, request.parts,
               [this, read, boxes = std::move(boxes), each = request.each, gathered = request.gathered,
                digest = request.digest]() mutable {
                 if (each) return zcopy_.send(std::move(read), std::move(boxes), digest);
                 if (gathered) return zcopy_.send_gathered(std::move(read), std::move(boxes), digest);
                 packed_.send(std::move(read), std::move(boxes), digest);
               });
}

// Memory may rot at any time, so blocks are digested for every request, also for those that hold a part of a block only.
void Serving::check_blocks(const std::shared_ptr<ServedRead>& read, const Lease* lease,
                           const std::vector<wire::RequestedBox>& parts, std::function<void()> then) {
  if (!read->digests()) return then();
  std::set<std::pair<std::uint32_t, std::uint32_t>> touched;  // tensor, block
  std::vector<std::uint32_t> found;
  for (const wire::RequestedBox& part : parts) {
    read->digests()->tensors.at(part.tensor).blocks.touching(part.box, found);
    for (const std::uint32_t block : found) touched.emplace(part.tensor, block);
  }
  std::vector<wire::RequestedBox> blocks;
  std::vector<Digest128> published;
  for (const auto& [tensor, block] : touched) {
    const PublishedDigests::Tensor& known = read->digests()->tensors[tensor];
    blocks.push_back({tensor, known.blocks[block]});
    published.push_back(known.digests[block]);
  }
  if (blocks.empty()) return then();
  auto boxes = read->locate(lease, blocks);
  digests_.take(read, std::move(boxes),
                [read, blocks = std::move(blocks), published = std::move(published),
                 then = std::move(then)](const std::vector<Digest128>& now) {
                  std::vector<wire::RequestedBox> differ;
                  for (std::size_t i = 0; i < now.size(); ++i) {
                    if (now[i] != published[i]) differ.push_back(blocks[i]);
                  }
                  differ.empty() ? then() : read->refuse_corrupt(std::move(differ));
                });
}

void Serving::serve_one(Connection& reader, const wire::DigestRequest& request) {
  auto read = make_read(reader, request.request, request.parts.size());
  const Lease* lease = read->read_under(request.lease);
  auto boxes = read->locate(lease, request.parts);
  auto answer = [keep = reader.shared_from_this(), number = request.request](std::vector<Digest128> digests) {
    keep->send(wire::Digests{number, std::move(digests)});
  };
  check_blocks(read, lease, request.parts,
               [this, read, boxes = std::move(boxes), answer = std::move(answer)]() mutable {
                 digests_.take(std::move(read), std::move(boxes), std::move(answer));
               });
}

void Serving::serve_one(Connection& reader, const wire::BlockRequest& request) {
  const Leases::Held held = leases_.held(request.lease, reader.id());
  if (!held.publication->digests) refuse_request("there are no digests of blocks");
  wire::Digests answer{request.request, {}};
  for (const auto& [tensor, first, count] : request.ranges) {
    const auto& all = held.publication->digests->tensors;
    if (tensor >= all.size() || first > all[tensor].digests.size() || count > all[tensor].digests.size() - first) {
      refuse_request(fmt::format("tensor {} has no blocks {} to {}", tensor, first, std::uint64_t{first} + count));
    }
    const auto begin = all[tensor].digests.begin() + first;
    answer.digests.insert(answer.digests.end(), begin, begin + count);
  }
  reader.send(answer);
}

}  // namespace shardwire
