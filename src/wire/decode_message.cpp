// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "schema/control.capnp.h"
#include "wire/capnp_input.hpp"
#include "wire/enums.hpp"
#include "wire/keep_messages.hpp"
#include "wire/rendezvous_messages.hpp"

namespace shardwire::wire {
namespace {

Hello read_hello(schema::Hello::Reader from, Input& in) {
  Hello hello;
  hello.version = from.getVersion();
  hello.rank = in.at("Hello.rank").rank_or_none(from.getRank());
  hello.world_size = in.at("Hello.worldSize").rank(from.getWorldSize());
  hello.incarnation = from.getIncarnation();
  for (const auto capability : in.at("Hello.capabilities").list(from.getCapabilities(), max_capabilities)) {
    hello.capabilities.push_back(in.name(capability, max_name_bytes));
  }
  hello.host = in.at("Hello.host").name(from.getHost(), max_name_bytes);
  hello.nonce = in.at("Hello.nonce").digest(from.getNonce());
  if (from.hasRunId()) hello.run_id = in.at("Hello.runId").name(from.getRunId(), max_name_bytes);
  for (const auto fabric : in.at("Hello.fabrics").list(from.getFabrics(), max_fabrics)) {
    hello.fabrics.push_back({in.name(fabric.getName(), max_name_bytes), in.name(fabric.getDomain(), max_name_bytes)});
  }
  return hello;
}

template <typename Request>
Request read_blob_request(schema::BlobRequest::Reader from, Input& in) {
  return {.digest = in.at("BlobRequest.digest").digest(from.getDigest())};
}

template <typename Reply>
Reply read_blob_reply(schema::BlobReply::Reader from, Input& in) {
  Reply reply;
  reply.digest = in.at("BlobReply.digest").digest(from.getDigest());
  reply.encoded = in.at("BlobReply.encoded").data(from.getEncoded(), max_message_bytes);
  return reply;
}

Lease read_lease(schema::Lease::Reader from, Input& in) {
  Lease lease;
  lease.request = from.getRequest();
  lease.generation = from.getGeneration();
  lease.publication = in.at("Lease.publication").name(from.getPublication(), max_name_bytes);
  const auto ranges = in.at("Lease.ranges").list(from.getRanges());
  lease.ranges.reserve(ranges.size());
  for (const auto range : ranges) {
    in.at("Lease.ranges", lease.ranges.size());
    lease.ranges.push_back({range.getTensor(), in.boxes(range.getBoxes())});
  }
  return lease;
}

Release read_release(schema::Release::Reader from) {
  return {from.getRequest(), from.getLease()};
}

Leased read_leased(schema::Leased::Reader from) {
  return {from.getRequest(), from.getLease(), from.getStep()};
}

Confirm read_confirm(schema::Confirm::Reader from, Input& in) {
  return {from.getRequest(), in.at("Confirm.publication").name(from.getPublication(), max_name_bytes),
          from.getGeneration()};
}

Released read_released(schema::Released::Reader from) {
  return {from.getRequest(), from.getIntact()};
}

Bind read_bind(schema::Bind::Reader from, Input& in) {
  Bind bind;
  bind.request = from.getRequest();
  bind.lease = from.getLease();
  for (const auto fabric : in.at("Bind.fabrics").list(from.getFabrics(), max_fabrics)) {
    bind.fabrics.push_back({in.name(fabric.getName(), max_name_bytes), in.name(fabric.getDomain(), max_name_bytes),
                            in.data(fabric.getAddress(), max_address_bytes), fabric.getSockets()});
  }
  return bind;
}

RegionHandle read_region(schema::RegionHandle::Reader from, std::size_t fabrics, const Input& in) {
  RegionHandle region{from.getSizeBytes(), {}, from.getMemoryKind(), from.getDevice()};
  for (const auto key : in.list(from.getKeys(), max_fabrics)) {
    if (key.getFabric() >= fabrics) in.reject(fmt::format("has a key for fabric {} of {}", key.getFabric(), fabrics));
    if (key.getDescriptors() > max_descriptors_per_message) in.reject("has a key with too many descriptors");
    region.keys.push_back({key.getFabric(), in.data(key.getKey(), max_region_key_bytes), key.getDescriptors()});
  }
  return region;
}

Bound read_bound(schema::Bound::Reader from, Input& in) {
  Bound bound;
  bound.request = from.getRequest();
  bound.max_pack_bytes = from.getMaxPackBytes();
  bound.digests = from.getDigests();
  for (const auto address : in.at("Bound.addresses").list(from.getAddresses(), max_fabrics)) {
    bound.addresses.push_back(in.data(address, max_address_bytes));
  }
  const auto regions = in.at("Bound.regions").list(from.getRegions());
  bound.regions.reserve(regions.size());
  for (const auto region : regions) {
    in.at("Bound.regions", bound.regions.size());
    bound.regions.push_back(read_region(region, bound.addresses.size(), in));
  }
  if (from.hasWordRegion()) {
    in.at("Bound.wordRegion");
    bound.word = Bound::Word{read_region(from.getWordRegion(), bound.addresses.size(), in), from.getWordOffsetBytes()};
    if (bound.word->offset_bytes > bound.word->region.size_bytes) in.reject("ends before its generation word");
  }
  const auto tensors = in.at("Bound.tensors").list(from.getTensors());
  bound.tensors.reserve(tensors.size());
  for (const auto tensor : tensors) {
    in.at("Bound.tensors", bound.tensors.size());
    TensorHandle handle{tensor.getTensor(), tensor.getRegion(), tensor.getOffsetBytes(), {}};
    if (handle.region != no_region) {
      if (handle.region >= bound.regions.size()) in.reject(fmt::format("names region {}", handle.region));
      if (handle.offset_bytes > bound.regions[handle.region].size_bytes) in.reject("starts past the end of its region");
    }
    handle.strides = in.shape(tensor.getStrides());
    bound.tensors.push_back(handle);
  }
  return bound;
}

template <typename From>
std::vector<RequestedBox> read_boxes(From from, const char* tensors_field, const char* boxes_field, Input& in) {
  const auto tensors = in.at(tensors_field).numbers(from.getTensors(), max_boxes_per_message);
  const std::vector<Box> boxes = in.at(boxes_field).boxes(from.getBoxes());
  if (boxes.size() != tensors.size()) in.reject(fmt::format("are {} for {} tensors", boxes.size(), tensors.size()));
  std::vector<RequestedBox> parts;
  parts.reserve(boxes.size());
  for (unsigned i = 0; i < tensors.size(); ++i) parts.push_back({tensors[i], boxes[i]});
  return parts;
}

template <typename Request>
Request read_parts(schema::PartsRequest::Reader from, Input& in) {
  Request request;
  request.request = from.getRequest();
  request.lease = from.getLease();
  request.parts = read_boxes(from, "PartsRequest.tensors", "PartsRequest.boxes", in);
  return request;
}

PackRequest read_pack_request(schema::PartsRequest::Reader from, Input& in) {
  auto request = read_parts<PackRequest>(from, in);
  request.each = from.getEach();
  request.gathered = from.getGathered();
  if (request.each && request.gathered) in.at("PartsRequest.gathered").reject("does not go with one message for each");
  request.digest = from.getDigest();
  request.generation = from.getGeneration();
  if (from.hasPublication()) {
    request.publication = in.at("PartsRequest.publication").name(from.getPublication(), max_name_bytes);
  }
  return request;
}

BlockRequest read_block_request(schema::BlockRequest::Reader from, Input& in) {
  BlockRequest request{from.getRequest(), from.getLease(), {}};
  std::uint64_t blocks = 0;
  for (const auto range : in.at("BlockRequest.ranges").list(from.getRanges())) {
    in.at("BlockRequest.ranges", request.ranges.size());
    blocks += range.getCount();
    if (blocks > max_boxes_per_message) in.reject("asks for too many blocks");
    request.ranges.push_back({range.getTensor(), range.getFirst(), range.getCount()});
  }
  return request;
}

Digests read_digests(schema::Digests::Reader from, Input& in) {
  Digests digests;
  digests.request = from.getRequest();
  const auto words = in.at("Digests.words").numbers(from.getWords(), 2 * max_boxes_per_message);
  if (words.size() % 2 != 0) in.reject("has an odd number of words");
  digests.digests.reserve(words.size() / 2);
  for (unsigned i = 0; i < words.size(); i += 2) digests.digests.push_back({words[i], words[i + 1]});
  return digests;
}

Failure read_failure(schema::Failure::Reader from, Input& in) {
  // An unknown code of a later version still means that the request failed, and its message tells why.
  const auto known = static_cast<std::size_t>(from.getCode());
  const ErrorCode code = known < wire_errors.size() ? wire_errors[known] : ErrorCode::transport_failed;
  Failure failure{from.getRequest(), code, in.at("Failure.message").name(from.getMessage(), max_failure_bytes), {}};
  if (from.hasBoxes()) failure.parts = read_boxes(from, "Failure.tensors", "Failure.boxes", in);
  return failure;
}

Descriptors read_descriptors(schema::Descriptors::Reader from, Input& in) {
  if (from.getCount() > max_descriptors_per_message) in.at("Descriptors.count").reject("is too large");
  return {from.getRequest(), from.getCount()};
}

Message read_message(schema::Message::Reader from, Input& in) {
  using Which = schema::Message::Which;
  switch (from.which()) {
    case Which::UNSET: break;
    case Which::HELLO: return read_hello(from.getHello(), in);
    case Which::PROOF: return Proof{in.at("Proof.digest").digest(from.getProof().getDigest())};
    case Which::MANIFEST_REQUEST: return read_blob_request<ManifestRequest>(from.getManifestRequest(), in);
    case Which::MANIFEST_REPLY: return read_blob_reply<ManifestReply>(from.getManifestReply(), in);
    case Which::VALUES_REQUEST: return read_blob_request<ValuesRequest>(from.getValuesRequest(), in);
    case Which::VALUES_REPLY: return read_blob_reply<ValuesReply>(from.getValuesReply(), in);
    case Which::LEASE: return read_lease(from.getLease(), in);
    case Which::LEASED: return read_leased(from.getLeased());
    case Which::RELEASE: return read_release(from.getRelease());
    case Which::RELEASED: return read_released(from.getReleased());
    case Which::BIND: return read_bind(from.getBind(), in);
    case Which::BOUND: return read_bound(from.getBound(), in);
    case Which::PACK_REQUEST: return read_pack_request(from.getPackRequest(), in);
    case Which::DIGEST_REQUEST: return read_parts<DigestRequest>(from.getDigestRequest(), in);
    case Which::BLOCK_REQUEST: return read_block_request(from.getBlockRequest(), in);
    case Which::DIGESTS: return read_digests(from.getDigests(), in);
    case Which::FAILURE: return read_failure(from.getFailure(), in);
    case Which::GOODBYE: return Goodbye{};
    case Which::JOIN:
    case Which::JOINED:
    case Which::PUBLISH:
    case Which::WATCH:
    case Which::ROSTER:
    case Which::MEMBERSHIP_CHANGES:
    case Which::LOOKUP:
    case Which::ADDRESSES:
    case Which::GATHER:
    case Which::GATHERED:
    case Which::GATHER_QUIT:
    case Which::GATHER_ABSENT:
    case Which::EXCHANGE_GIVEN_UP:
    case Which::UNWATCH:
    case Which::ATTEMPT_RAISED: return read_rendezvous_message(from, in);
    case Which::KEEP_JOB:
    case Which::KEEP_JOINED:
    case Which::KEEP_BEGIN:
    case Which::KEEP_BUFFER:
    case Which::KEEP_DONE:
    case Which::KEEP_QUIT:
    case Which::KEPT:
    case Which::KEEP_STATUS_REQUEST:
    case Which::KEEP_STATUS:
    case Which::KEEP_DROP:
    case Which::KEEP_MEMBERS_LOST: return read_keep_message(from, in);
    case Which::CONFIRM: return read_confirm(from.getConfirm(), in);
    case Which::PING: return Ping{from.getPing().getNumber()};
    case Which::PONG: return Pong{from.getPong().getNumber()};
    case Which::DESCRIPTORS: return read_descriptors(from.getDescriptors(), in);
    case Which::ATTACH: return Attach{from.getAttach().getToken(), from.getAttach().getIndex()};
    case Which::ATTACHED: return Attached{};
  }
  in.at("Message").reject(fmt::format("is of the unknown kind {}", static_cast<unsigned>(from.which())));
}

}  // namespace

Message decode(std::span<const std::byte> bytes) {
  return read_framed<schema::Message>("Message", bytes,
                                      [](schema::Message::Reader from, Input& in) { return read_message(from, in); });
}

}  // namespace shardwire::wire
