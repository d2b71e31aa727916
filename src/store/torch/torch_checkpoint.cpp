// The zip archives of torch.save: uncompressed members, found by the central directory (the local
// headers may be incomplete), and the tensors of the pickle as views of the storages in them.

#include "src/store/torch/torch_checkpoint.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "src/store/weight_file.hpp"

namespace choir {

struct ZipMember {
  std::string name;
  std::int64_t header = 0;  ///< position of the local header in the archive
  std::int64_t bytes = 0;
  std::int64_t data = 0;  ///< position of its bytes
};

class ZipDirectory {
 public:
  /// Throws a StorageError that names the archive and the fault: compressed or encrypted members,
  /// several of one name, members that overlap or reach beyond the archive.
  explicit ZipDirectory(const FileWindow& archive);

  /// In the order of the directory.
  const std::vector<ZipMember>& members() const { return members_; }
  /// nullptr if there is no such member.
  const ZipMember* find(std::string_view name) const;

 private:
  std::vector<ZipMember> members_;
};

namespace {

constexpr std::uint32_t kLocalMark = 0x04034b50, kCentralMark = 0x02014b50, kEndMark = 0x06054b50,
                        kEnd64Mark = 0x06064b50, kLocator64Mark = 0x07064b50;
constexpr std::int64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                       kLocator64Bytes = 20, kLongestComment = 65535;
constexpr std::int64_t kMostDirectoryBytes = std::int64_t{256} << 20;
constexpr std::uint16_t kExtra64 = 1;
constexpr std::uint32_t kIn64 = 0xffffffff;

[[noreturn]] void refuse_zip(const FileWindow& archive, const std::string& why) {
  throw StorageError(fmt::format("the zip archive '{}' {}", archive.name(), why),
                     "the copy or download may be incomplete");
}

template <class T>
T number_in(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

struct Directory {
  std::int64_t entries = 0, at = 0, bytes = 0;
};

std::int64_t checked(std::uint64_t value, const FileWindow& archive) {
  if (value > static_cast<std::uint64_t>(archive.bytes()))
    refuse_zip(archive, fmt::format("points to byte {} of {}", value, archive.bytes()));
  return static_cast<std::int64_t>(value);
}

Directory find_directory64(const FileWindow& archive, std::int64_t end_at) {
  const std::int64_t locator = end_at - kLocator64Bytes;
  if (locator < 0 || archive.number_at<std::uint32_t>(locator) != kLocator64Mark)
    refuse_zip(archive, "lacks the locator of its 64-bit directory");
  const std::int64_t at = checked(archive.number_at<std::uint64_t>(locator + 8), archive);
  const std::string record = archive.text_at(at, kEnd64Bytes);
  if (number_in<std::uint32_t>(record, 0) != kEnd64Mark)
    refuse_zip(archive, "lacks its 64-bit directory");
  return {checked(number_in<std::uint64_t>(record, 32), archive),
          checked(number_in<std::uint64_t>(record, 48), archive),
          checked(number_in<std::uint64_t>(record, 40), archive)};
}

Directory find_directory(const FileWindow& archive) {
  const std::int64_t tail = std::min(archive.bytes(), kEndBytes + kLongestComment);
  if (tail < kEndBytes) refuse_zip(archive, "is too short");
  const std::string bytes = archive.text_at(archive.bytes() - tail, tail);
  for (std::int64_t at = tail - kEndBytes; at >= 0; --at) {
    const auto here = static_cast<std::size_t>(at);
    if (number_in<std::uint32_t>(bytes, here) != kEndMark ||
        number_in<std::uint16_t>(bytes, here + 20) != tail - kEndBytes - at)
      continue;
    const std::int64_t end_at = archive.bytes() - tail + at;
    const Directory found{number_in<std::uint16_t>(bytes, here + 10),
                          number_in<std::uint32_t>(bytes, here + 16),
                          number_in<std::uint32_t>(bytes, here + 12)};
    if (number_in<std::uint16_t>(bytes, here + 4) != 0 && found.entries != 0xffff)
      refuse_zip(archive, "is one of several parts");
    if (found.entries == 0xffff || found.at == kIn64 || found.bytes == kIn64)
      return find_directory64(archive, end_at);
    return found;
  }
  refuse_zip(archive, "has no directory at its end");
}

// Sizes and positions beyond 4 GiB are in an extra field, in this order; it contains only values
// that do not fit into 32 bits.
void read_extra64(std::string_view extra, std::uint64_t& whole, std::uint64_t& stored,
                  std::uint64_t& header, const FileWindow& archive) {
  while (extra.size() >= 4) {
    const auto kind = number_in<std::uint16_t>(extra, 0);
    const std::size_t size = number_in<std::uint16_t>(extra, 2);
    if (size > extra.size() - 4) refuse_zip(archive, "has a damaged extra field");
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (kind != kExtra64) continue;
    for (std::uint64_t* value : {&whole, &stored, &header}) {
      if (*value != kIn64) continue;
      if (field.size() < 8) refuse_zip(archive, "has a damaged 64-bit extra field");
      *value = number_in<std::uint64_t>(field, 0);
      field.remove_prefix(8);
    }
  }
}

void require_plain_path(const std::string& name, const FileWindow& archive) {
  const bool climbs = name == ".." || name.starts_with("../") || name.ends_with("/..") ||
                      name.find("/../") != std::string::npos;
  if (name.empty() || name.front() == '/' || climbs ||
      name.find_first_of(std::string_view("\\\0", 2)) != std::string::npos)
    refuse_zip(archive, fmt::format("has a member with the path '{}'", name));
}

// Takes one entry from the front of the directory.
ZipMember take_member(std::string_view& directory, const FileWindow& archive) {
  if (std::ssize(directory) < kCentralBytes ||
      number_in<std::uint32_t>(directory, 0) != kCentralMark)
    refuse_zip(archive, "has a damaged directory");
  const std::size_t name_bytes = number_in<std::uint16_t>(directory, 28),
                    extra_bytes = number_in<std::uint16_t>(directory, 30),
                    comment_bytes = number_in<std::uint16_t>(directory, 32);
  const std::size_t all = kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  if (directory.size() < all) refuse_zip(archive, "has a damaged directory");
  ZipMember member;
  member.name = directory.substr(kCentralBytes, name_bytes);
  require_plain_path(member.name, archive);
  if ((number_in<std::uint16_t>(directory, 8) & 1u) != 0)
    refuse_zip(archive, fmt::format("has the encrypted member '{}'", member.name));
  if (number_in<std::uint16_t>(directory, 10) != 0)
    refuse_zip(archive, fmt::format("has the compressed member '{}'; torch stores them plainly",
                                    member.name));
  std::uint64_t stored = number_in<std::uint32_t>(directory, 20),
                whole = number_in<std::uint32_t>(directory, 24),
                header = number_in<std::uint32_t>(directory, 42);
  read_extra64(directory.substr(kCentralBytes + name_bytes, extra_bytes), whole, stored, header,
               archive);
  if (stored != whole)
    refuse_zip(archive, fmt::format("gives two sizes of the member '{}'", member.name));
  member.bytes = checked(whole, archive);
  member.header = checked(header, archive);
  directory.remove_prefix(all);
  return member;
}

// A member's bytes begin after its local header, whose sizes may be zero but whose name must agree.
void locate(ZipMember& member, const FileWindow& archive, std::int64_t directory_at) {
  const std::string head = archive.text_at(member.header, kLocalBytes);
  const auto name_bytes = std::int64_t{number_in<std::uint16_t>(head, 26)};
  const auto extra_bytes = std::int64_t{number_in<std::uint16_t>(head, 28)};
  if (number_in<std::uint32_t>(head, 0) != kLocalMark ||
      archive.text_at(member.header + kLocalBytes, name_bytes) != member.name)
    refuse_zip(archive,
               fmt::format("does not have the member '{}' at its listed position", member.name));
  member.data = member.header + kLocalBytes + name_bytes + extra_bytes;
  if (member.data > directory_at || member.bytes > directory_at - member.data)
    refuse_zip(archive, fmt::format("has the member '{}' reach into its directory", member.name));
}

void require_apart(const std::vector<ZipMember>& members, const FileWindow& archive) {
  std::vector<const ZipMember*> sorted;
  for (const ZipMember& member : members) sorted.push_back(&member);
  std::sort(sorted.begin(), sorted.end(),
            [](const ZipMember* a, const ZipMember* b) { return a->header < b->header; });
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i]->header < sorted[i - 1]->data + sorted[i - 1]->bytes)
      refuse_zip(archive, fmt::format("has the members '{}' and '{}' overlap", sorted[i - 1]->name,
                                      sorted[i]->name));
}

}  // namespace

ZipDirectory::ZipDirectory(const FileWindow& archive) {
  const Directory directory = find_directory(archive);
  if (directory.bytes > archive.bytes() - directory.at || directory.bytes > kMostDirectoryBytes)
    refuse_zip(archive, "has a directory that does not fit into the file");
  const std::string bytes = archive.text_at(directory.at, directory.bytes);
  std::string_view left = bytes;
  std::set<std::string_view> names;
  for (std::int64_t i = 0; i < directory.entries; ++i) {
    members_.push_back(take_member(left, archive));
    locate(members_.back(), archive, directory.at);
  }
  for (const ZipMember& member : members_)
    if (!names.insert(member.name).second)
      refuse_zip(archive, fmt::format("has two members '{}'", member.name));
  if (!left.empty()) refuse_zip(archive, "has more members than it counts");
  require_apart(members_, archive);
}

const ZipMember* ZipDirectory::find(std::string_view name) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const ZipMember& member) { return member.name == name; });
  return found == members_.end() ? nullptr : &*found;
}

namespace {

constexpr std::int64_t kLongestPickle = std::int64_t{64} << 20;

// Bytes read at a time from a tensor that is not contiguous in its storage.
constexpr std::int64_t kSpanBytes = std::int64_t{64} << 20;

/// Position of a tensor in its storage: maps element i of the row-major view to an element of the
/// storage.
struct View {
  std::int64_t data = 0;  // byte position of its first element in the archive
  std::vector<std::int64_t> shape, stride;
  bool contiguous = false;

  std::int64_t place(std::int64_t element) const {
    std::int64_t place = 0;
    for (std::size_t dim = shape.size(); dim-- > 0; element /= shape[dim])
      place += element % shape[dim] * stride[dim];
    return place;
  }
};

bool is_contiguous(const PickleTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t dim = tensor.shape.size(); dim-- > 0; expected *= tensor.shape[dim])
    if (tensor.shape[dim] != 1 && tensor.stride[dim] != expected) return false;
  return true;
}

// Number of elements of the storage up to the last one that the view reaches. Below 2^62
// throughout.
std::int64_t reach(const PickleTensor& tensor, const std::string& what) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  if (tensor.shape.size() != tensor.stride.size() || tensor.offset < 0)
    throw StorageError(what + " has a shape, strides and an offset that do not match");
  std::int64_t last = tensor.offset;
  for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim) {
    const std::int64_t extent = tensor.shape[dim], stride = tensor.stride[dim];
    if (extent == 0) return 0;
    if (stride < 0 || last > kMost || (stride > 0 && extent - 1 > (kMost - 1) / stride))
      throw StorageError(fmt::format("{} has the stride {}", what, stride));
    last += (extent - 1) * stride;
  }
  return last + 1;
}

void require_torch_zip(const FileWindow& archive) {
  constexpr std::string_view kLegacy("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
                                     14);
  const std::string head = archive.text_at(0, std::min<std::int64_t>(archive.bytes(), 14));
  if (head == kLegacy)
    throw StorageError(
        fmt::format("'{}' has the format of torch before version 1.6", archive.name()),
        "load it with torch and save it again");
  if (!head.starts_with("PK"))
    throw StorageError(fmt::format("'{}' is not an archive of torch.save", archive.name()));
}

// The top-level folder of the archive.
std::string root_folder(const ZipDirectory& zip, const FileWindow& archive) {
  constexpr std::string_view kPickle = "/data.pkl";
  std::vector<std::string> roots;
  for (const ZipMember& member : zip.members())
    if (member.name.ends_with(kPickle))
      roots.push_back(member.name.substr(0, member.name.size() - kPickle.size()));
  if (roots.size() != 1)
    throw StorageError(fmt::format("'{}' has {} members data.pkl, where torch.save writes one",
                                   archive.name(), roots.size()));
  if (zip.find(roots[0] + "/constants.pkl") != nullptr)
    throw StorageError(fmt::format("'{}' is a TorchScript program", archive.name()),
                       "save its state_dict with torch.save");
  return roots[0];
}

std::string text_of(const ZipMember& member, std::int64_t most, const FileWindow& archive) {
  if (member.bytes > most)
    throw StorageError(fmt::format("'{}' of '{}' has {} bytes, more than {}", member.name,
                                   archive.name(), member.bytes, most));
  return archive.text_at(member.data, member.bytes);
}

Pickle read_data(const ZipDirectory& zip, const std::string& root, const FileWindow& archive) {
  if (const ZipMember* order = zip.find(root + "/byteorder"))
    if (text_of(*order, 16, archive) != "little")
      throw StorageError(fmt::format("'{}' was saved on a big-endian machine", archive.name()),
                         "load it with torch and save it again");
  const std::string bytes = text_of(*zip.find(root + "/data.pkl"), kLongestPickle, archive);
  return {bytes, fmt::format("the pickle in '{}'", archive.name())};
}

/// Collects every tensor below a value, with the path to it.
class TensorWalk {
 public:
  using Found = std::pair<std::string, const PickleTensor*>;

  explicit TensorWalk(std::string what) : what_(std::move(what)) {}
  std::vector<Found> from(const PickleValue& root) {
    visit(root, "", 0);
    return std::move(found_);
  }

 private:
  // Limits, because a pickle may contain itself or refer to one list very often.
  static constexpr int kDeepest = 64;
  static constexpr std::int64_t kMostVisits = 1 << 18;
  static constexpr std::size_t kMostNameBytes = std::size_t{64} << 20;

  void visit(const PickleValue& value, const std::string& path, int depth) {
    if (depth > kDeepest || ++visits_ > kMostVisits)
      throw StorageError(what_ + " is nested too deeply, or contains itself");
    if ((name_bytes_ += path.size()) > kMostNameBytes)
      throw StorageError(what_ + " has tensors with names of more than 64 MiB together");
    if (const auto* tensor = value.as<PickleTensor>()) found_.emplace_back(path, tensor);
    if (const auto* list = value.as<PickleList>())
      for (std::size_t i = 0; i < list->items.size(); ++i)
        visit_under(*list->items[i], path, std::to_string(i), depth);
    if (const auto* dict = value.as<PickleDict>())
      for (const auto& [key, item] : dict->entries) {
        if (const auto* text = key->as<std::string>()) visit_under(*item, path, *text, depth);
        if (const auto* number = key->as<std::int64_t>())
          visit_under(*item, path, std::to_string(*number), depth);
      }
  }
  void visit_under(const PickleValue& value, const std::string& path, const std::string& key,
                   int depth) {
    const bool leaf = value.as<PickleTensor>() == nullptr && value.as<PickleList>() == nullptr &&
                      value.as<PickleDict>() == nullptr;
    if (leaf) return;
    if (path.size() + key.size() > kLongestName)
      throw StorageError(what_ + " has a tensor with a name of more than 4096 bytes");
    visit(value, path.empty() ? key : path + "/" + key, depth + 1);
  }
  static constexpr std::size_t kLongestName = 4096;

  std::string what_;
  std::vector<Found> found_;
  std::int64_t visits_ = 0;
  std::size_t name_bytes_ = 0;
};

}  // namespace

struct TorchCheckpoint::State {
  FileWindow archive;
  ZipDirectory zip;
  std::string root;
  Pickle pickle;
  std::vector<View> views;  // views of the tensors

  explicit State(const FileWindow& file)
      : archive((require_torch_zip(file), file)),
        zip(archive),
        root(root_folder(zip, archive)),
        pickle(read_data(zip, root, archive)) {}

  View view_of(const PickleTensor& tensor, const std::string& what,
               const std::unordered_map<std::string_view, const ZipMember*>& members) const {
    const std::string name = root + "/data/" + tensor.storage.key;
    const auto found = members.find(name);
    if (found == members.end())
      throw StorageError(fmt::format("{} is stored in '{}', which is missing", what, name));
    const ZipMember& storage = *found->second;
    const std::int64_t width = encoded_bytes(tensor.encoding, 1);
    const std::int64_t claimed = tensor.storage.elements;
    const std::int64_t unit = tensor.storage.encoding ? width : 1;
    if (claimed > std::numeric_limits<std::int64_t>::max() / unit ||
        claimed * unit != storage.bytes)
      throw StorageError(fmt::format("{} is stored in '{}', which has {} bytes, not {} elements",
                                     what, name, storage.bytes, claimed));
    if (reach(tensor, what) > storage.bytes / width)
      throw StorageError(fmt::format("{} reaches beyond its storage '{}'", what, name));
    return {storage.data + tensor.offset * width, tensor.shape, tensor.stride,
            is_contiguous(tensor)};
  }
};

TorchCheckpoint::TorchCheckpoint(const std::string& path) : TorchCheckpoint(FileWindow(path)) {}

TorchCheckpoint::TorchCheckpoint(const FileWindow& archive)
    : TensorReader(archive.name()), state_(std::make_unique<State>(archive)) {
  std::unordered_map<std::string_view, const ZipMember*> members;
  for (const ZipMember& member : state_->zip.members()) members[member.name] = &member;
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] :
       TensorWalk(fmt::format("the pickle in '{}'", path())).from(state_->pickle.root())) {
    const std::string what = fmt::format("tensor '{}' in '{}'", name, path());
    entries.push_back(
        {name, tensor->encoding, checked_shape(tensor->shape, tensor->encoding, what)});
    state_->views.push_back(state_->view_of(*tensor, what, members));
  }
  set_tensors(std::move(entries));
}

TorchCheckpoint::~TorchCheckpoint() = default;

const PickleValue& TorchCheckpoint::root() const {
  return state_->pickle.root();
}

void TorchCheckpoint::read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                                   std::byte* to) const {
  const View& view = state_->views[index];
  const std::int64_t width = encoded_bytes(tensors()[index].encoding, 1);
  if (view.contiguous) return state_->archive.read_at(to, count * width, view.data + first * width);
  // With strides: read the range of the storage with the next elements, as many as fit.
  std::vector<std::byte> span;
  std::vector<std::int64_t> places;
  for (std::int64_t done = 0; done < count; done += std::ssize(places)) {
    places.clear();
    std::int64_t low = 0, high = 0;
    for (std::int64_t i = done; i < count && std::ssize(places) < kSpanBytes / 8; ++i) {
      const std::int64_t place = view.place(first + i);
      const std::int64_t new_low = places.empty() ? place : std::min(low, place);
      const std::int64_t new_high = places.empty() ? place : std::max(high, place);
      if ((new_high - new_low + 1) * width > kSpanBytes) break;
      low = new_low, high = new_high;
      places.push_back(place);
    }
    span.resize(static_cast<std::size_t>((high - low + 1) * width));
    state_->archive.read_at(span.data(), std::ssize(span), view.data + low * width);
    for (std::size_t i = 0; i < places.size(); ++i)
      std::memcpy(to + (done + static_cast<std::int64_t>(i)) * width,
                  span.data() + (places[i] - low) * width, static_cast<std::size_t>(width));
  }
}

}  // namespace choir
