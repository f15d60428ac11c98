"""A real tus client: `begin URL FILE CHUNK` uploads one chunk and prints where; `resume URL FILE` goes on from what the
server has, and prints the offset that the server reported."""

import sys

from tusclient.client import TusClient

verb, url, path = sys.argv[1:4]
if verb == "begin":
    uploader = TusClient(url).uploader(path, chunk_size=int(sys.argv[4]))
    uploader.upload_chunk()
    print(uploader.url)
else:
    uploader = TusClient(url).uploader(path, url=url, chunk_size=1 << 20)
    print(uploader.offset)
    uploader.upload()
    assert uploader.offset == uploader.get_file_size(), uploader.offset
