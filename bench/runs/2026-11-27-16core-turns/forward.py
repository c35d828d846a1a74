import subprocess,json,statistics as st
b={"e5c99a6b":"inlane-e5c99a6b","7dd69944":"inlane-7dd69944"}
res={}
for m in ("single","split"):
    for t in range(11):
        for n in (list(b) if t%2 else list(b)[::-1]):
            o=subprocess.run([b[n],*f"forward --rx null:64 --tx null --function macswap --method {m} --duration 500ms --no-baseline --json -".split()],capture_output=True,text=True)
            d=json.loads(o.stdout)["results"][0]
            v=d["rx"]["packets_per_second"]; res.setdefault((m,n),[]).append(v/1e6)
    o,n=res[(m,"e5c99a6b")],res[(m,"7dd69944")]
    print(m,f"{st.median(n)/st.median(o):.3f} old {min(o):.1f} {st.median(o):.1f} {max(o):.1f} new {min(n):.1f} {st.median(n):.1f} {max(n):.1f} Mpps",flush=True)
