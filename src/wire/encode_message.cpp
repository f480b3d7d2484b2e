// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "schema/control.capnp.h"
#include "wire/capnp_output.hpp"
#include "wire/enums.hpp"
#include "wire/keep_messages.hpp"
#include "wire/limits.hpp"
#include "wire/rendezvous_messages.hpp"

namespace shardwire::wire {

void write_digest(schema::Digest::Builder out, const Digest& digest) {
  std::array<std::uint64_t, 4> parts{};
  for (std::size_t i = 0; i < digest.size(); ++i) parts[i / 8] |= std::uint64_t(digest[i]) << (8 * (i % 8));
  out.setA(parts[0]);
  out.setB(parts[1]);
  out.setC(parts[2]);
  out.setD(parts[3]);
}

namespace {

void write_hello(schema::Hello::Builder out, const Hello& hello) {
  out.setVersion(hello.version);
  out.setRank(hello.rank);
  out.setWorldSize(hello.world_size);
  out.setIncarnation(hello.incarnation);
  auto capabilities = out.initCapabilities(static_cast<unsigned>(hello.capabilities.size()));
  for (unsigned i = 0; i < capabilities.size(); ++i) capabilities.set(i, text_of(hello.capabilities[i]));
  out.setHost(text_of(hello.host));
  write_digest(out.initNonce(), hello.nonce);
  if (!hello.run_id.empty()) out.setRunId(text_of(hello.run_id));
  auto fabrics = out.initFabrics(static_cast<unsigned>(hello.fabrics.size()));
  for (unsigned i = 0; i < fabrics.size(); ++i) {
    fabrics[i].setName(text_of(hello.fabrics[i].name));
    fabrics[i].setDomain(text_of(hello.fabrics[i].domain));
  }
}

void write_blob(schema::BlobReply::Builder out, const Digest& digest, const Bytes& encoded) {
  write_digest(out.initDigest(), digest);
  out.setEncoded(data_of(encoded));
}

template <typename Out>
void write_requested(Out out, const std::vector<RequestedBox>& parts) {
  auto tensors = out.initTensors(static_cast<unsigned>(parts.size()));
  for (unsigned i = 0; i < tensors.size(); ++i) tensors.set(i, parts[i].tensor);
  write_boxes(out.initBoxes(), parts.size(), [&](unsigned i) -> const Box& { return parts[i].box; });
}

template <typename Request>
void write_parts(schema::PartsRequest::Builder out, const Request& request) {
  out.setRequest(request.request);
  out.setLease(request.lease);
  write_requested(out, request.parts);
}

using Builder = schema::Message::Builder;

void write(Builder out, const Hello& hello) {
  write_hello(out.initHello(), hello);
}
void write(Builder out, const Proof& proof) {
  write_digest(out.initProof().initDigest(), proof.digest);
}
void write(Builder out, const ManifestRequest& request) {
  write_digest(out.initManifestRequest().initDigest(), request.digest);
}
void write(Builder out, const ManifestReply& reply) {
  write_blob(out.initManifestReply(), reply.digest, reply.encoded);
}
void write(Builder out, const ValuesRequest& request) {
  write_digest(out.initValuesRequest().initDigest(), request.digest);
}
void write(Builder out, const ValuesReply& reply) {
  write_blob(out.initValuesReply(), reply.digest, reply.encoded);
}

void write(Builder out, const Lease& lease) {
  auto to = out.initLease();
  to.setRequest(lease.request);
  to.setGeneration(lease.generation);
  to.setPublication(text_of(lease.publication));
  auto ranges = to.initRanges(static_cast<unsigned>(lease.ranges.size()));
  for (unsigned i = 0; i < ranges.size(); ++i) {
    const TensorRange& range = lease.ranges[i];
    ranges[i].setTensor(range.tensor);
    if (range.boxes.empty()) continue;
    write_boxes(ranges[i].initBoxes(), range.boxes.size(), [&](unsigned b) -> const Box& { return range.boxes[b]; });
  }
}

void write(Builder out, const Leased& leased) {
  auto to = out.initLeased();
  to.setRequest(leased.request);
  to.setLease(leased.lease);
  to.setStep(leased.step);
}

void write(Builder out, const Release& release) {
  auto to = out.initRelease();
  to.setRequest(release.request);
  to.setLease(release.lease);
}

void write(Builder out, const Confirm& confirm) {
  auto to = out.initConfirm();
  to.setRequest(confirm.request);
  to.setGeneration(confirm.generation);
  to.setPublication(text_of(confirm.publication));
}

void write(Builder out, const Released& released) {
  auto to = out.initReleased();
  to.setRequest(released.request);
  to.setIntact(released.intact);
}

void write(Builder out, const Bind& bind) {
  auto to = out.initBind();
  to.setRequest(bind.request);
  to.setLease(bind.lease);
  auto fabrics = to.initFabrics(static_cast<unsigned>(bind.fabrics.size()));
  for (unsigned i = 0; i < fabrics.size(); ++i) {
    const FabricHandle& fabric = bind.fabrics[i];
    fabrics[i].setName(text_of(fabric.name));
    fabrics[i].setDomain(text_of(fabric.domain));
    fabrics[i].setAddress(data_of(fabric.address));
    fabrics[i].setSockets(fabric.sockets);
  }
}

void write_region(schema::RegionHandle::Builder out, const RegionHandle& region) {
  out.setSizeBytes(region.size_bytes);
  out.setMemoryKind(region.memory_kind);
  out.setDevice(region.device);
  auto keys = out.initKeys(static_cast<unsigned>(region.keys.size()));
  for (unsigned i = 0; i < keys.size(); ++i) {
    keys[i].setFabric(region.keys[i].fabric);
    keys[i].setKey(data_of(region.keys[i].key));
    keys[i].setDescriptors(region.keys[i].descriptors);
  }
}

void write(Builder out, const Bound& bound) {
  auto to = out.initBound();
  to.setRequest(bound.request);
  to.setMaxPackBytes(bound.max_pack_bytes);
  to.setDigests(bound.digests);
  auto addresses = to.initAddresses(static_cast<unsigned>(bound.addresses.size()));
  for (unsigned i = 0; i < addresses.size(); ++i) addresses.set(i, data_of(bound.addresses[i]));
  auto regions = to.initRegions(static_cast<unsigned>(bound.regions.size()));
  for (unsigned i = 0; i < regions.size(); ++i) {
    write_region(regions[i], bound.regions[i]);
  }
  if (bound.word) {
    write_region(to.initWordRegion(), bound.word->region);
    to.setWordOffsetBytes(bound.word->offset_bytes);
  }
  auto tensors = to.initTensors(static_cast<unsigned>(bound.tensors.size()));
  for (unsigned i = 0; i < tensors.size(); ++i) {
    tensors[i].setTensor(bound.tensors[i].tensor);
    tensors[i].setRegion(bound.tensors[i].region);
    tensors[i].setOffsetBytes(bound.tensors[i].offset_bytes);
    if (bound.tensors[i].strides.empty()) continue;
    auto strides = tensors[i].initStrides(static_cast<unsigned>(bound.tensors[i].strides.size()));
    for (unsigned dim = 0; dim < strides.size(); ++dim) strides.set(dim, bound.tensors[i].strides[dim]);
  }
}

void write(Builder out, const PackRequest& request) {
  auto to = out.initPackRequest();
  write_parts(to, request);
  to.setEach(request.each);
  to.setDigest(request.digest);
  to.setGeneration(request.generation);
  to.setGathered(request.gathered);
  if (!request.publication.empty()) to.setPublication(text_of(request.publication));
}
void write(Builder out, const DigestRequest& request) {
  write_parts(out.initDigestRequest(), request);
}

void write(Builder out, const BlockRequest& request) {
  auto to = out.initBlockRequest();
  to.setRequest(request.request);
  to.setLease(request.lease);
  auto ranges = to.initRanges(static_cast<unsigned>(request.ranges.size()));
  for (unsigned i = 0; i < ranges.size(); ++i) {
    ranges[i].setTensor(request.ranges[i].tensor);
    ranges[i].setFirst(request.ranges[i].first);
    ranges[i].setCount(request.ranges[i].count);
  }
}

void write(Builder out, const Digests& digests) {
  auto to = out.initDigests();
  to.setRequest(digests.request);
  auto words = to.initWords(2 * static_cast<unsigned>(digests.digests.size()));
  for (unsigned i = 0; i < digests.digests.size(); ++i) {
    words.set(2 * i, digests.digests[i].low);
    words.set(2 * i + 1, digests.digests[i].high);
  }
}

void write(Builder out, const Failure& failure) {
  auto to = out.initFailure();
  to.setRequest(failure.request);
  to.setCode(to_wire<schema::ErrorCode>(wire_errors, failure.code));
  // Text for people: shorten it rather than refuse it.
  const std::size_t size = std::min(failure.message.size(), max_failure_bytes);
  to.setMessage(text_of(failure.message.substr(0, size)));
  if (!failure.parts.empty()) write_requested(to, failure.parts);
}

void write(Builder out, const Goodbye&) {
  out.setGoodbye();
}
void write(Builder out, const Ping& ping) {
  out.initPing().setNumber(ping.number);
}
void write(Builder out, const Pong& pong) {
  out.initPong().setNumber(pong.number);
}
void write(Builder out, const Descriptors& descriptors) {
  auto to = out.initDescriptors();
  to.setRequest(descriptors.request);
  to.setCount(descriptors.count);
}
void write(Builder out, const Attach& attach) {
  auto to = out.initAttach();
  to.setToken(attach.token);
  to.setIndex(attach.index);
}
void write(Builder out, const Attached&) {
  out.setAttached();
}

}  // namespace

Bytes encode(const Message& message) {
  return encode_framed<schema::Message>(
      "message", [&](Builder out) { std::visit([&](const auto& value) { write(out, value); }, message); });
}

Bytes canonical_hello(const Hello& hello) {
  return encode_canonical<schema::Hello>("Hello", [&](schema::Hello::Builder out) { write_hello(out, hello); });
}

static_assert(std::is_nothrow_move_constructible_v<MessageKinds> && std::is_nothrow_move_assignable_v<MessageKinds>);
Message::Message() = default;
Message::Message(const Message& other) = default;
Message::Message(Message&& other) noexcept = default;
Message::~Message() = default;
Message& Message::operator=(const Message& other) = default;
Message& Message::operator=(Message&& other) noexcept = default;
bool Message::operator==(const Message& other) const {
  const MessageKinds& mine = *this;
  const MessageKinds& others = other;
  return mine == others;
}

std::optional<std::uint64_t> request_of(const Message& message) {
  return std::visit(
      [](const auto& value) -> std::optional<std::uint64_t> {
        if constexpr (requires { value.request; }) {
          return value.request;
        } else {
          return std::nullopt;
        }
      },
      message);
}

}  // namespace shardwire::wire
