#include "moe/ipc/messages.h"

#include <algorithm>
#include <format>
#include <string_view>
#include <utility>

namespace moe::ipc {
namespace {

using base::ErrorKind;
using base::Fail;

constexpr std::uint32_t kMaxLayers = 1 << 16;
constexpr std::uint32_t kMaxExperts = 1 << 16;
constexpr std::uint32_t kMaxRows = 1 << 17;
constexpr std::uint32_t kMaxUsed = 1 << 12;
constexpr std::uint32_t kMaxEmbd = 1 << 20;
constexpr std::uint32_t kMaxThreads = 1024;
constexpr auto kLastErrorKind = static_cast<std::uint8_t>(ErrorKind::kInternal);

class Writer {
 public:
  template <class T>
  void Number(T value) {
    const auto wide = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(wide >> (8 * i)));
    }
  }
  void Text(std::string_view text) {
    text = text.substr(0, kMaxTextBytes);
    Number(static_cast<std::uint16_t>(text.size()));
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
  }
  void Bits(std::span<const std::uint8_t> flags) {
    for (std::size_t i = 0; i < flags.size(); i += 8) {
      unsigned byte = 0;
      for (std::size_t b = 0; b < 8 && i + b < flags.size(); ++b) {
        byte |= static_cast<unsigned>(flags[i + b] != 0) << b;
      }
      bytes_.push_back(static_cast<std::byte>(byte));
    }
  }
  void Identity(const ModelIdentity& model) {
    Text(model.architecture);
    Text(model.name);
    Text(model.quantisation);
    Number(model.num_layers);
    Number(model.num_experts);
    Number(model.directory_hash);
    Number(model.shape_hash);
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads fields in order; the first fault is kept and everything after it reads as zero.
class Reader {
 public:
  Reader(std::string_view message, std::span<const std::byte> payload)
      : message_(message), rest_(payload) {}

  template <class T>
  T Number(std::string_view field, std::uint64_t least = 0, std::uint64_t most = UINT64_MAX) {
    const auto bytes = Take(field, sizeof(T));
    if (bytes.empty()) return {};
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    }
    if (value < least || value > most) {
      Fault(std::format("{} is {}, not {} to {}", field, value, least, most));
      return {};
    }
    return static_cast<T>(value);
  }
  bool Flag(std::string_view field) { return Number<std::uint8_t>(field, 0, 1) != 0; }

  std::string Text(std::string_view field) {
    const auto length = Number<std::uint16_t>(field, 0, kMaxTextBytes);
    const auto bytes = Take(field, length);
    std::string text;
    for (const std::byte b : bytes) text.push_back(static_cast<char>(b));
    return text;
  }
  std::vector<std::uint8_t> Bits(std::string_view field, std::size_t count) {
    if (!fault_.empty()) return {};
    const auto bytes = Take(field, (count + 7) / 8);
    std::vector<std::uint8_t> flags(fault_.empty() ? count : 0);
    for (std::size_t i = 0; i < flags.size(); ++i) {
      flags[i] = (std::to_integer<unsigned>(bytes[i / 8]) >> (i % 8)) & 1U;
    }
    if (count % 8 != 0 && !bytes.empty() &&
        (std::to_integer<unsigned>(bytes.back()) >> (count % 8)) != 0) {
      Fault(std::format("{} has bits beyond the last unit", field));
    }
    return flags;
  }
  ModelIdentity Identity() {
    ModelIdentity model;
    model.architecture = Text("architecture");
    model.name = Text("name");
    model.quantisation = Text("quantisation");
    model.num_layers = Number<std::uint32_t>("num_layers", 1, kMaxLayers);
    model.num_experts = Number<std::uint32_t>("num_experts", 1, kMaxExperts);
    model.directory_hash = Number<std::uint64_t>("directory_hash");
    model.shape_hash = Number<std::uint64_t>("shape_hash");
    return model;
  }
  ResultForm Form() { return static_cast<ResultForm>(Number<std::uint8_t>("form", 0, 1)); }

  // `value` when all of the payload was read without a fault.
  template <class T>
  base::Result<T> Finish(T value) {
    if (fault_.empty() && !rest_.empty()) {
      Fault(std::format("{} bytes are left over", rest_.size()));
    }
    if (fault_.empty()) return value;
    return Fail(ErrorKind::kWorkerLost, "a {} message: {}", message_, fault_);
  }

 private:
  std::span<const std::byte> Take(std::string_view field, std::size_t count) {
    if (!fault_.empty()) return {};
    if (rest_.size() < count) {
      Fault(std::format("ends inside {}", field));
      return {};
    }
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  void Fault(std::string text) {
    if (fault_.empty()) fault_ = std::move(text);
  }

  std::string_view message_;
  std::span<const std::byte> rest_;
  std::string fault_;
};

std::string Printable(std::string_view text) {
  std::string printable;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      printable.push_back(c);
    } else {
      printable += std::format("\\x{:02x}", byte);
    }
  }
  return printable;
}

}  // namespace

std::vector<std::byte> Encode(const Welcome& message) {
  Writer writer;
  writer.Identity(message.model);
  writer.Text(message.target);
  writer.Number(static_cast<std::uint8_t>(message.form));
  writer.Number(message.memory_free.count());
  writer.Number(message.memory_total.count());
  writer.Text(message.device_id);
  writer.Number(static_cast<std::uint8_t>(message.shares_host_ram));
  return writer.Take();
}

base::Result<Welcome> DecodeWelcome(std::span<const std::byte> payload) {
  Reader reader("welcome", payload);
  Welcome message;
  message.model = reader.Identity();
  message.target = reader.Text("target");
  message.form = reader.Form();
  message.memory_free = base::Bytes(reader.Number<std::uint64_t>("memory_free"));
  message.memory_total = base::Bytes(reader.Number<std::uint64_t>("memory_total"));
  message.device_id = reader.Text("device_id");
  message.shares_host_ram = reader.Flag("shares_host_ram");
  return reader.Finish(std::move(message));
}

std::vector<std::byte> Encode(const LoadOrder& message) {
  Writer writer;
  writer.Identity(message.model);
  writer.Number(message.plan_fingerprint);
  writer.Number(static_cast<std::uint8_t>(message.packed));
  writer.Number(message.num_threads);
  writer.Number(message.rows.max_rows);
  writer.Number(message.rows.num_used);
  writer.Number(message.rows.n_embd);
  writer.Number(static_cast<std::uint8_t>(message.rows.form));
  writer.Bits(message.owned);
  return writer.Take();
}

base::Result<LoadOrder> DecodeLoadOrder(std::span<const std::byte> payload) {
  Reader reader("load", payload);
  LoadOrder message;
  message.model = reader.Identity();
  message.plan_fingerprint = reader.Number<std::uint64_t>("plan_fingerprint");
  message.packed = reader.Flag("packed");
  message.num_threads = reader.Number<std::uint32_t>("num_threads", 1, kMaxThreads);
  message.rows.max_rows = reader.Number<std::uint32_t>("max_rows", 1, kMaxRows);
  message.rows.num_used = reader.Number<std::uint32_t>("num_used", 1, kMaxUsed);
  message.rows.n_embd = reader.Number<std::uint32_t>("n_embd", 1, kMaxEmbd);
  message.rows.form = reader.Form();
  message.owned =
      reader.Bits("owned", std::size_t{message.model.num_layers} * message.model.num_experts);
  return reader.Finish(std::move(message));
}

std::vector<std::byte> Encode(const LoadProgress& message) {
  Writer writer;
  writer.Number(message.done.count());
  writer.Number(message.total.count());
  return writer.Take();
}

base::Result<LoadProgress> DecodeLoadProgress(std::span<const std::byte> payload) {
  Reader reader("progress", payload);
  LoadProgress message;
  message.done = base::Bytes(reader.Number<std::uint64_t>("done"));
  message.total = base::Bytes(reader.Number<std::uint64_t>("total"));
  return reader.Finish(message);
}

std::vector<std::byte> Encode(const Ready& message) {
  Writer writer;
  writer.Number(message.plan_fingerprint);
  writer.Number(message.bytes.count());
  return writer.Take();
}

base::Result<Ready> DecodeReady(std::span<const std::byte> payload) {
  Reader reader("ready", payload);
  Ready message;
  message.plan_fingerprint = reader.Number<std::uint64_t>("plan_fingerprint");
  message.bytes = base::Bytes(reader.Number<std::uint64_t>("bytes"));
  return reader.Finish(message);
}

std::vector<std::byte> Encode(const BatchOrder& message) {
  Writer writer;
  writer.Number(message.number);
  writer.Number(message.layer);
  writer.Number(message.num_rows);
  return writer.Take();
}

base::Result<BatchOrder> DecodeBatchOrder(std::span<const std::byte> payload) {
  Reader reader("batch", payload);
  BatchOrder message;
  message.number = reader.Number<std::uint64_t>("number", 1);
  message.layer = reader.Number<std::uint32_t>("layer", 0, kMaxLayers - 1);
  message.num_rows = reader.Number<std::uint32_t>("num_rows", 0, kMaxRows);
  return reader.Finish(message);
}

std::vector<std::byte> Encode(const BatchDone& message) {
  Writer writer;
  writer.Number(message.number);
  writer.Number(message.num_pairs);
  return writer.Take();
}

base::Result<BatchDone> DecodeBatchDone(std::span<const std::byte> payload) {
  Reader reader("done", payload);
  BatchDone message;
  message.number = reader.Number<std::uint64_t>("number", 1);
  message.num_pairs = reader.Number<std::uint64_t>("num_pairs");
  return reader.Finish(message);
}

std::vector<std::byte> Encode(const base::Error& failure) {
  Writer writer;
  writer.Number(static_cast<std::uint8_t>(failure.kind));
  writer.Text(failure.message);
  return writer.Take();
}

base::Result<base::Error> DecodeFailure(std::span<const std::byte> payload) {
  Reader reader("failure", payload);
  base::Error failure;
  failure.kind = static_cast<ErrorKind>(reader.Number<std::uint8_t>("kind", 0, kLastErrorKind));
  failure.message = Printable(reader.Text("message"));
  return reader.Finish(std::move(failure));
}

}  // namespace moe::ipc
