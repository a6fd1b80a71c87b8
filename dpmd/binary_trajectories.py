"""Binary trajectories of other programs: DCD (CHARMM, NAMD, LAMMPS) and XTC (GROMACS).

Both keep positions only, in single precision (DCD) or as multiples of a small length (XTC).
"""

import struct

import numpy as np


def _record(payload):
    """A Fortran record: length, bytes, length."""
    size = struct.pack("<i", len(payload))
    return size + payload + size


class DcdFile:
    """Appends frames to a DCD file.

    n_atoms : per frame; first_step, every : of the frames; timestep : script units; append : go on
    with a file that is there.
    """

    def __init__(self, path, n_atoms, first_step, every, timestep, append=False):
        self.n_atoms, self.first_step, self.every = n_atoms, first_step, every
        self.file = open(path, "r+b" if append else "w+b")  # noqa: SIM115
        if append:
            self.file.seek(8)
            (self.frames,) = struct.unpack("<i", self.file.read(4))
            self.file.seek(0, 2)
            return
        self.frames = 0
        numbers = np.zeros(20, "<i4")
        numbers[1], numbers[2], numbers[3], numbers[10], numbers[19] = first_step, every, first_step, 1, 24
        header = bytearray(b"CORD" + numbers.tobytes())
        header[4 + 36 : 4 + 40] = struct.pack("<f", timestep)
        titles = struct.pack("<i", 2) + b"REMARKS written by dpmd".ljust(80) + b"REMARKS".ljust(80)
        self.file.write(_record(bytes(header)) + _record(titles) + _record(struct.pack("<i", n_atoms)))

    def write(self, positions, cell, step):
        """positions : (n, 3) Å; cell : (3, 3) Å."""
        lengths = np.linalg.norm(cell, axis=1)

        def cosine(a, b):
            return cell[a] @ cell[b] / lengths[a] / lengths[b]

        box = (lengths[0], cosine(0, 1), lengths[1], cosine(0, 2), cosine(1, 2), lengths[2])
        self.file.write(_record(struct.pack("<6d", *box)))
        for axis in range(3):
            self.file.write(_record(positions[:, axis].astype("<f4").tobytes()))
        self.frames += 1
        end = self.file.tell()
        for place, value in ((8, self.frames), (20, step)):
            self.file.seek(place)
            self.file.write(struct.pack("<i", value))
        self.file.seek(end)
        self.file.flush()

    def close(self):
        """Close the file."""
        self.file.close()


class XtcFile:
    """Appends frames to an XTC file, lengths in nm in multiples of 1 / precision.

    The frames use the format's packing of three integers to as few bits as their ranges need, but
    not its coding of differences between neighbours, so files are larger than GROMACS's.
    """

    _MAGIC, _SMALLEST = 1995, 9

    def __init__(self, path, precision=1000.0, append=False):
        self.precision = float(precision)
        self.file = open(path, "ab" if append else "wb")  # noqa: SIM115

    def write(self, positions, cell, step, time):
        """positions : (n, 3) nm; cell : (3, 3) nm; time : ps."""
        n = len(positions)
        out = [struct.pack(">iiif", self._MAGIC, n, step, time), struct.pack(">9f", *np.ravel(cell))]
        out.append(struct.pack(">i", n))
        if n <= 9:
            out.append(np.asarray(positions, ">f4").tobytes())
        else:
            out.append(self._packed(positions))
        self.file.write(b"".join(out))
        self.file.flush()

    def _packed(self, positions):
        whole = np.rint(np.asarray(positions) * self.precision).astype(np.int64)
        if np.abs(whole).max() > 2**31 - 3:
            raise ValueError("positions are too large for an XTC file; lower its precision")
        low, high = whole.min(axis=0), whole.max(axis=0)
        sizes = [int(s) for s in high - low + 1]
        together = max(sizes) <= 0xFFFFFF
        if together:
            widths = [(sizes[0] * sizes[1] * sizes[2]).bit_length()]
        else:
            widths = [s.bit_length() for s in sizes]
        bits, length = [], 0
        for a, b, c in (whole - low).tolist():
            values = [(a * sizes[1] + b) * sizes[2] + c] if together else (a, b, c)
            for value, width in zip(values, widths, strict=True):
                # whole bytes, lowest first, then what remains
                while width > 8 and together:
                    bits.append((value & 0xFF, 8))
                    value, width = value >> 8, width - 8
                bits.append((value, width))
            bits.append((0, 1))  # no run of small differences follows
        stream = "".join(format(value, f"0{width}b") for value, width in bits)
        length = -(-len(stream) // 8)
        packed = int(stream.ljust(8 * length, "0"), 2).to_bytes(length, "big")
        head = struct.pack(">f", self.precision) + struct.pack(">6i", *low.tolist(), *high.tolist())
        return head + struct.pack(">ii", self._SMALLEST, length) + packed.ljust(-(-length // 4) * 4, b"\0")

    def close(self):
        """Close the file."""
        self.file.close()
