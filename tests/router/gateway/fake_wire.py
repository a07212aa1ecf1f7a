"""A transport without a kernel."""


class Wire:
    """A transport that keeps what is written and closes only when it is told."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_reading = True
        self.is_closed = False
        self.unsent_bytes = 0
        self.unsent_bytes_max = 0

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self.written.append(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += pieces

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int) -> None:
        self.unsent_bytes_max = high
