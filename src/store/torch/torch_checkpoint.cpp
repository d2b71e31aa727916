#include "choir/store/torch/torch_checkpoint.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "choir/core/error.hpp"
#include "src/store/file_window.hpp"
#include "src/store/torch/zip_directory.hpp"

namespace choir {
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
