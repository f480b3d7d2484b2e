// SPDX-License-Identifier: Apache-2.0
#include "schema/manifest.capnp.h"
#include "wire/capnp_input.hpp"
#include "wire/capnp_output.hpp"

namespace shardwire::wire {

Bytes encode_member(const MemberRecord& record) {
  return encode_framed<schema::MemberRecord>("member record", [&](schema::MemberRecord::Builder out) {
    out.setRank(record.rank);
    out.setPort(record.port);
    out.setIncarnation(record.incarnation);
    out.setHost(text_of(record.host));
    out.setAddress(text_of(record.address));
    out.setLocalPath(text_of(record.local_path));
  });
}

MemberRecord decode_member(std::span<const std::byte> bytes) {
  return read_framed<schema::MemberRecord>("MemberRecord", bytes, [](schema::MemberRecord::Reader from, Input& in) {
    MemberRecord record;
    record.rank = in.at("MemberRecord.rank").rank(from.getRank());
    record.port = from.getPort();
    record.incarnation = from.getIncarnation();
    record.host = in.at("MemberRecord.host").name(from.getHost(), max_name_bytes);
    record.address = in.at("MemberRecord.address").name(from.getAddress(), max_name_bytes);
    record.local_path = in.at("MemberRecord.localPath").name(from.getLocalPath(), max_name_bytes);
    return record;
  });
}

Bytes encode_publication(const PublicationRecord& record) {
  return encode_framed<schema::PublicationRecord>("publication record", [&](schema::PublicationRecord::Builder out) {
    out.setMember(record.member);
    out.setPlace(record.place);
    out.setIncarnation(record.incarnation);
    out.setStep(record.step);
    out.setGeneration(record.generation);
    out.setWithdrawn(!record.live);
    write_digest(out.initManifest(), record.manifest);
    write_digest(out.initValues(), record.values);
  });
}

PublicationRecord decode_publication(std::span<const std::byte> bytes) {
  return read_framed<schema::PublicationRecord>(
      "PublicationRecord", bytes, [](schema::PublicationRecord::Reader from, Input& in) {
        PublicationRecord record;
        record.member = in.at("PublicationRecord.member").rank(from.getMember());
        record.place = in.at("PublicationRecord.place").rank(from.getPlace());
        record.incarnation = from.getIncarnation();
        record.step = from.getStep();
        record.generation = from.getGeneration();
        record.live = !from.getWithdrawn();
        record.manifest = in.at("PublicationRecord.manifest").digest(from.getManifest());
        record.values = in.at("PublicationRecord.values").digest(from.getValues());
        return record;
      });
}

}  // namespace shardwire::wire
