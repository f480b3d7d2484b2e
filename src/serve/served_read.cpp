// SPDX-License-Identifier: Apache-2.0
#include "serve/served_read.hpp"

#include <fmt/core.h>

#include <optional>

#include "serve/refusal.hpp"
#include "support/checked.hpp"

namespace shardwire {

namespace {

void check_covered(const Lease& lease, const wire::RequestedBox& part) {
  if (!covers(lease, part))
    refuse_request(fmt::format("tensor {} {} is not under the lease", part.tensor, to_string(part.box)));
}

}  // namespace

ServedRead::ServedRead(Publications& publications, Leases& leases, Readers& readers, Connection& reader,
                       std::uint64_t number, std::size_t parts)
    : publications_(publications),
      leases_(leases),
      readers_(readers),
      connection_(reader.shared_from_this()),
      number_(number),
      charge_(readers.charge(reader.id(), {.requests = 1, .parts = parts})) {
}

const Lease* ServedRead::read_under(std::uint64_t lease) {
  const Leases::Held held = leases_.held(lease, reader());
  publication_ = held.publication;
  lease_ = lease;
  return held.lease;
}

void ServedRead::read_while_live(const std::string& name, std::uint64_t generation) {
  publication_ = publications_.live(name, generation);
  if (!publication_) throw withdrawn_while_read(name);
}

void ServedRead::check_readable() const {
  if (lease_ != 0) {
    (void)leases_.held(lease_, reader());
  } else if (publications_.live(publication_->name) != publication_) {
    throw withdrawn_while_read(publication_->name);
  }
}

void ServedRead::fail(const Error& error) {
  connection_->send(wire::Failure{number_, error.code(), error.what()});
}

void ServedRead::refuse_corrupt(std::vector<wire::RequestedBox> blocks) {
  const wire::RequestedBox& first = blocks.front();
  const TensorKey& key = publication_->described.manifest->tensors.at(first.tensor).spec.key;
  std::string text = fmt::format("{} {} is not what was published", to_string(key), to_string(first.box));
  if (blocks.size() > 1) text += fmt::format(", and {} further boxes", blocks.size() - 1);
  connection_->send(wire::Failure{number_, ErrorCode::corrupt, std::move(text), std::move(blocks)});
}

std::vector<move::SourceBox> ServedRead::locate(const Lease* lease, const std::vector<wire::RequestedBox>& parts) {
  ByteCount bytes = 0;
  std::vector<move::SourceBox> boxes;
  boxes.reserve(parts.size());
  std::optional<std::uint32_t> looked_at;
  for (const wire::RequestedBox& part : parts) {
    if (lease != nullptr) {
      check_covered(*lease, part);
    } else if (part.tensor >= publication_->tensors.size()) {
      refuse_request(fmt::format("there is no tensor {}", part.tensor));
    }
    if (looked_at != part.tensor) publication_->require_still_there(part.tensor);
    looked_at = part.tensor;
    boxes.push_back(locate(part));
    bytes = support::add(bytes, boxes.back().bytes(), "the size of a request");
  }
  return boxes;
}

move::SourceBox ServedRead::locate(const wire::RequestedBox& part) {
  const TensorSpec& spec = publication_->described.manifest->tensors.at(part.tensor).spec;
  const PlacedBox* holder = publication_->placed(part.tensor).around(part.box);
  if (holder == nullptr)
    refuse_request(fmt::format("{} {} is not held here", to_string(spec.key), to_string(part.box)));
  const detail::PublicationState::Tensor& tensor = publication_->tensors[part.tensor];
  return {part.box, *holder, tensor.data, item_size(spec.dtype), tensor.device()};
}

}  // namespace shardwire
